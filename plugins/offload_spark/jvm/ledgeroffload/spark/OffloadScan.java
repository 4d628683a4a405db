package ledgeroffload.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A read that is planned. A partition is the text of its plan, which its task decodes. */
final class OffloadScan implements Scan, Batch {
    /** The limit of a read that has none. */
    static final long ALL = Long.MAX_VALUE;

    private final StructType schema;
    private final List<String> plans;
    private final long limit;

    OffloadScan(StructType schema, List<String> plans, long limit) {
        this.schema = schema;
        this.plans = plans;
        this.limit = limit;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return "offload: the Java reader" + (limit == ALL ? "" : ", limit " + limit);
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED; // without it, Spark plans the partitions to find out
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return plans.stream().map(Part::new).toArray(InputPartition[]::new);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Factory(schema, limit);
    }

    record Part(String plan) implements InputPartition {
        /** Return no plan: it may have signed requests, which are secrets. */
        @Override
        public String toString() {
            return "part of a plan";
        }
    }

    private record Factory(StructType schema, long limit) implements PartitionReaderFactory, Serializable {
        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            return new PartReader(TaskPlan.of(((Part) partition).plan()), schema, limit);
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            throw new UnsupportedOperationException("partitions are read as columns");
        }
    }
}
