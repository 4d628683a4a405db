package ledgeroffload.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

/** The scan of the Python source, unchanged but for its description, which has the reason. */
record LeftToPython(PythonScan scan, String reason) implements Scan, SupportsMetadata {
    @Override
    public String description() {
        return scan.description() + ": " + reason;
    }

    @Override
    public StructType readSchema() {
        return scan.readSchema();
    }

    @Override
    public Batch toBatch() {
        return scan.toBatch();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return scan.supportedCustomMetrics();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
        return scan.reportDriverMetrics();
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return scan.columnarSupportMode();
    }

    @Override
    public Map<String, String> getMetaData() {
        return scan.getMetaData();
    }
}
