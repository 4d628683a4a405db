package ledgeroffload.spark;

import org.apache.spark.package$;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.LoggerFactory;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;
import scala.runtime.BoxedUnit;

/**
 * The entry of the Java reader: the value of {@code spark.sql.extensions}.
 *
 * <p>It adds one rule of the optimizer, which puts {@link OffloadTable} in the place of the Python source
 * {@code offload} in a batch read. So {@code format("offload")} stays the only name, and names, options,
 * schema, writes and streams stay those of the Python source.
 *
 * <p>Invariants: the rule changes no attribute of the plan. It leaves every plan as it is if the setting
 * {@code spark.offload.reader} is {@code python}, if the source of the plans is not registered, and under
 * another version of Spark than the one that this was tried with.
 */
public final class JavaReader extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    static final String SETTING = "spark.offload.reader";
    private static final String SOURCE = "offload";
    private static final String TRIED_WITH = "4.3.";

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        String version = package$.MODULE$.SPARK_VERSION();
        if (version.startsWith(TRIED_WITH)) {
            extensions.injectOptimizerRule(session -> new Replace((SparkSession) session));
        } else {
            LoggerFactory.getLogger(JavaReader.class).warn(
                    "ledger-offload: the Java reader is for Spark {}x, and this is Spark {}. "
                            + "The Python source reads.", TRIED_WITH, version);
        }
        return BoxedUnit.UNIT;
    }

    private static final class Replace extends Rule<LogicalPlan> {
        private final SparkSession session;

        Replace(SparkSession session) {
            this.session = session;
        }

        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            String reader = session.sessionState().conf().getConfString(SETTING, "java");
            if (!reader.equals("java") && !reader.equals("python")) {
                throw new IllegalArgumentException(SETTING + " is java or python, not " + reader);
            }
            return reader.equals("python") ? plan : plan.transform(new Relations(session));
        }
    }

    private static final class Relations extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
        private final SparkSession session;

        Relations(SparkSession session) {
            this.session = session;
        }

        @Override
        public boolean isDefinedAt(LogicalPlan plan) {
            return plan instanceof DataSourceV2Relation relation
                    && relation.table() instanceof PythonTable table
                    && table.name().equals(SOURCE)
                    && !isForPython(relation.options())
                    && PythonPlans.areRegistered(session);
        }

        /** Only the Python source leaves damaged records out, and lists them, and knows filters and terms. */
        private static boolean isForPython(CaseInsensitiveStringMap options) {
            return !options.getOrDefault("ondamage", "fail").equalsIgnoreCase("fail")
                    || !options.getOrDefault("filter", "").isEmpty()
                    || !options.getOrDefault("by", "").isEmpty()
                    || !options.getOrDefault("table", "records").equalsIgnoreCase("records");
        }

        @Override
        public LogicalPlan apply(LogicalPlan plan) {
            DataSourceV2Relation relation = (DataSourceV2Relation) plan;
            OffloadTable table = new OffloadTable(session, (PythonTable) relation.table());
            return relation.copy(table, relation.output(), relation.catalog(), relation.identifier(),
                    relation.options(), relation.timeTravelSpec());
        }
    }
}
