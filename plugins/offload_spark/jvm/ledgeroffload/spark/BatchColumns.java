package ledgeroffload.spark;

import java.util.Arrays;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.BinaryView;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of a read's batches. A batch is valid until the next one is made, as Spark's own are. */
final class BatchColumns {
    private final StructType schema;
    private final Rows rows;

    BatchColumns(StructType schema, Rows rows) {
        this.schema = schema;
        this.rows = rows;
    }

    ColumnarBatch batch(TaskPlan.Part part, TaskPlan.Fragment fragment) {
        ColumnVector[] found = new ColumnVector[schema.length()];
        for (int index = 0; index < found.length; index++) {
            found[index] = column(schema.fields()[index], part, fragment);
        }
        return new ColumnarBatch(found, rows.count);
    }

    private ColumnVector column(StructField field, TaskPlan.Part part, TaskPlan.Fragment fragment) {
        DataType type = field.dataType();
        switch (field.name()) {
            case "offset":
                return new Longs(type, rows.offsets);
            case "timestamp":
                return new Longs(type, rows.micros);
            case "value":
                return new Values(type, rows);
            default:
                ConstantColumnVector same = new ConstantColumnVector(rows.count, type);
                same.setNotNull();
                switch (field.name()) {
                    case "stream" -> same.setUtf8String(UTF8String.fromString(part.name()));
                    case "part" -> same.setInt(part.number());
                    case "ledger" -> same.setLong(fragment.ledger());
                    default -> same.setNull(); // the key: without a decoder, a record has none
                }
                return same;
        }
    }

    /** A column without nulls. Each kind has one getter, and no other is ever called for its type. */
    private abstract static class Column extends ColumnVector {
        Column(DataType type) {
            super(type);
        }

        @Override
        public void close() {
        }

        @Override
        public boolean hasNull() {
            return false;
        }

        @Override
        public int numNulls() {
            return 0;
        }

        @Override
        public boolean isNullAt(int row) {
            return false;
        }

        @Override
        public boolean getBoolean(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte getByte(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public short getShort(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public int getInt(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long getLong(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public float getFloat(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public double getDouble(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarArray getArray(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnarMap getMap(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            throw new UnsupportedOperationException();
        }

        @Override
        public UTF8String getUTF8String(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public byte[] getBinary(int row) {
            throw new UnsupportedOperationException();
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            throw new UnsupportedOperationException();
        }
    }

    private static final class Longs extends Column {
        private final long[] values;

        Longs(DataType type, long[] values) {
            super(type);
            this.values = values;
        }

        @Override
        public long getLong(int row) {
            return values[row];
        }
    }

    private static final class Values extends Column {
        private final byte[] data;
        private final int[] starts;
        private final int[] sizes;

        Values(DataType type, Rows rows) {
            super(type);
            this.data = rows.data;
            this.starts = rows.starts;
            this.sizes = rows.sizes;
        }

        @Override
        public byte[] getBinary(int row) {
            return Arrays.copyOfRange(data, starts[row], starts[row] + sizes[row]);
        }

        @Override
        public BinaryView getBinaryView(int row) {
            return BinaryView.fromBytes(data, starts[row], sizes[row]);
        }
    }
}
