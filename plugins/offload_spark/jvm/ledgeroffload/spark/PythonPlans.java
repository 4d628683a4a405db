package ledgeroffload.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import net.razorvine.pickle.Unpickler;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The plans of reads, made by the Python package in the process in which Spark plans Python sources.
 *
 * <p>The second source of the package, {@code offload_java_plan}, plans as the first one does, and hands over
 * text instead of Python objects. So the protocol, credentials, streams, offsets and filters are understood
 * in one place. The first text says the version of the plan, and why the Python source must read, if it must.
 */
final class PythonPlans {
    static final String SOURCE = "offload_java_plan";
    /** The version of the plans that this jar understands: PLAN_VERSION of offload_spark.java_plans. */
    static final int VERSION = 4;
    /** The format of records of which Java makes columns. A decoder of this format declares it: DecoderType.java. */
    static final String AMQP = "amqp-1.0";

    private static final ObjectMapper JSON = new ObjectMapper();

    private PythonPlans() {
    }

    static boolean areRegistered(SparkSession session) {
        return session.sessionState().dataSourceManager().dataSourceExists(SOURCE);
    }

    /** A plan: the texts of its partitions, or the reason for which the Python source must read. */
    record Planned(List<String> partitions, String reason, String decoder, long count) {
    }

    /**
     * Return the plan of a read with these filters.
     *
     * @param want {@code parts}, or {@code count} for the number of records alone
     * @param limit how many rows are needed; the plan may leave out partitions behind these
     * @throws IllegalStateException if the package makes plans of another version
     */
    static Planned plan(SparkSession session, CaseInsensitiveStringMap options, StructType schema,
            Filter[] filters, String want, long limit) {
        UserDefinedPythonDataSource source =
                session.sessionState().dataSourceManager().lookupDataSource(SOURCE);
        Map<String, String> asked = new HashMap<>(options.asCaseSensitiveMap());
        asked.put("javaplan", want);
        asked.put("javalimit", Long.toString(limit));
        // The schema as given by the user is part of the relation, so the source need not check it again.
        PythonDataSourceCreationResult made = source.createDataSourceInPython(
                SOURCE, new CaseInsensitiveStringMap(asked), Option.apply(schema));
        PythonDataSourceReadInfo info = filters.length == 0
                ? null
                : source.pushdownFiltersInPython(made, schema, filters).map(found -> found.readInfo())
                        .getOrElse(() -> null);
        if (info == null) {
            info = source.createReadInfoInPython(made, schema, false);
        }
        List<String> texts = new ArrayList<>();
        for (byte[] pickled : CollectionConverters.asJava(info.partitions())) {
            texts.add(textOf(pickled));
        }
        return read(texts);
    }

    private static Planned read(List<String> texts) {
        try {
            JsonNode head = JSON.readTree(texts.get(0));
            if (head.path("version").asInt() != VERSION) {
                throw new IllegalStateException("the jar of the Java reader understands plans of version "
                        + VERSION + ", and ledger-offload " + head.path("release").asText()
                        + " makes plans of version " + head.path("version").asText()
                        + ": use the jar of the installed ledger-offload, or set " + JavaReader.SETTING
                        + "=python");
            }
            return new Planned(List.copyOf(texts.subList(1, texts.size())), head.path("reason").asText(""),
                    head.path("decoder").asText(""), head.path("count").asLong(-1));
        } catch (IOException exc) {
            throw new IllegalStateException("the plan of the Python source is not JSON", exc);
        }
    }

    private static String textOf(byte[] pickled) {
        try {
            Object partition = new Unpickler().loads(pickled);
            return (String) ((Map<?, ?>) partition).get("value");
        } catch (IOException | ClassCastException exc) {
            throw new IllegalStateException("the plan of the Python source is not text", exc);
        }
    }
}
