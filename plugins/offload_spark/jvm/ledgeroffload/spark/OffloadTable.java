package ledgeroffload.spark;

import java.sql.Timestamp;
import java.time.Instant;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Product;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The table of a batch read. What Java cannot read, the scan of the Python source reads, which it replaces.
 *
 * <p>Spark filters every row again, as it does for the Python source: filters only narrow what is fetched.
 */
final class OffloadTable implements SupportsRead {
    /** The columns that Java makes without a decoder. */
    private static final Set<String> PLAIN = Set.of("stream", "ledger", "offset", "timestamp", "value", "part");
    /** The columns of AMQP messages that Java makes. Without a decoder, a key is null. */
    private static final Set<String> DECODED = Set.of("body", "key");

    private static final Instant YEAR_1 = Instant.parse("0001-01-01T00:00:00Z");
    private static final Instant YEAR_10000 = Instant.parse("+10000-01-01T00:00:00Z");

    private final SparkSession session;
    private final PythonTable python;

    OffloadTable(SparkSession session, PythonTable python) {
        this.session = session;
        this.python = python;
    }

    @Override
    public String name() {
        return python.name();
    }

    @Override
    public Column[] columns() {
        return python.columns();
    }

    @Override
    public Map<String, String> properties() {
        return python.properties();
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Builder(options);
    }

    private final class Builder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns,
            SupportsPushDownAggregates, SupportsPushDownLimit {
        private final CaseInsensitiveStringMap options;
        private final StructType all;
        private StructType wanted;
        private Filter[] filters = new Filter[0];
        private boolean isCount;
        private long limit = OffloadScan.ALL;

        Builder(CaseInsensitiveStringMap options) {
            this.options = options;
            this.all = org.apache.spark.sql.connector.catalog.CatalogV2Util.v2ColumnsToStructType(columns());
            this.wanted = all;
        }

        @Override
        public Filter[] pushFilters(Filter[] given) {
            filters = Arrays.stream(given).filter(Builder::hasTimesOfPython).toArray(Filter[]::new);
            return given;
        }

        /** Whether Python's class of times can hold all times of a filter: PySpark fails with another one. */
        private static boolean hasTimesOfPython(Object each) {
            if (each instanceof Object[] values) {
                return Arrays.stream(values).allMatch(Builder::hasTimesOfPython);
            }
            if (each instanceof Filter && each instanceof Product fields) {
                return CollectionConverters.asJava(fields.productIterator().toSeq()).stream()
                        .allMatch(Builder::hasTimesOfPython);
            }
            Instant at = each instanceof Timestamp old ? old.toInstant() : each instanceof Instant of ? of : YEAR_1;
            return !at.isBefore(YEAR_1) && at.isBefore(YEAR_10000);
        }

        @Override
        public Filter[] pushedFilters() {
            return new Filter[0];
        }

        @Override
        public void pruneColumns(StructType required) {
            wanted = required;
        }

        @Override
        public boolean supportCompletePushDown(Aggregation aggregation) {
            return isCountOfAll(aggregation);
        }

        @Override
        public boolean pushAggregation(Aggregation aggregation) {
            isCount = isCountOfAll(aggregation);
            return isCount;
        }

        /** With {@code encryptedOnly} the Python source counts: it refuses plain fragments, and a manifest does not. */
        private boolean isCountOfAll(Aggregation aggregation) {
            return !options.getBoolean("encryptedonly", false)
                    && aggregation.groupByExpressions().length == 0
                    && aggregation.aggregateExpressions().length == 1
                    && aggregation.aggregateExpressions()[0] instanceof CountStar;
        }

        /** Spark asks only if there are no filters: it filters the rows itself, and cannot say how many are needed. */
        @Override
        public boolean pushLimit(int given) {
            if (options.getBoolean("pushdown", true)) {
                limit = given;
            }
            return limit == given;
        }

        /** Each task may deliver as many rows, and more, so Spark limits them again. */
        @Override
        public boolean isPartiallyPushed() {
            return true;
        }

        @Override
        public Scan build() {
            if (isCount) {
                return new Counted(
                        PythonPlans.plan(session, options, all, new Filter[0], "count", OffloadScan.ALL).count());
            }
            // Which format the decoder has, only the plan says: here, any may be AMQP.
            String reason = reasonAgainst(options.getOrDefault("decode", "").isEmpty() ? "" : PythonPlans.AMQP);
            if (reason.isEmpty()) {
                boolean push = session.sessionState().conf().pythonFilterPushDown()
                        && options.getBoolean("pushdown", true);
                PythonPlans.Planned planned = PythonPlans.plan(
                        session, options, all, push ? filters : new Filter[0], "parts", limit);
                reason = planned.reason().isEmpty() ? reasonAgainst(planned.decoder()) : planned.reason();
                if (reason.isEmpty()) {
                    return new OffloadScan(wanted, planned.partitions(), limit);
                }
            }
            org.slf4j.LoggerFactory.getLogger(OffloadTable.class)
                    .info("ledger-offload: the Python source reads: {}", reason);
            ScanBuilder builder = python.newScanBuilder(options);
            if (builder instanceof SupportsPushDownFilters pushing) {
                pushing.pushFilters(filters);
            }
            Scan scan = builder.build();
            return scan instanceof PythonScan found ? new LeftToPython(found, reason) : scan;
        }

        private String reasonAgainst(String format) {
            for (String name : wanted.fieldNames()) {
                boolean isNull = name.equals("key") && format.isEmpty();
                boolean isDecoded = DECODED.contains(name) && format.equals(PythonPlans.AMQP);
                if (!PLAIN.contains(name) && !isNull && !isDecoded) {
                    return "a decoder makes the column " + name + ", and not Java";
                }
            }
            return "";
        }
    }

    /** The count of all records, from manifests and indexes alone. */
    private static final class Counted implements LocalScan {
        private final long count;

        Counted(long count) {
            this.count = count;
        }

        @Override
        public StructType readSchema() {
            return new StructType().add("count", DataTypes.LongType, false);
        }

        @Override
        public InternalRow[] rows() {
            return new InternalRow[] {new GenericInternalRow(new Object[] {count})};
        }

        @Override
        public String description() {
            return "offload: counted from the indexes, no record is read";
        }
    }
}
