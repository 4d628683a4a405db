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
        AmqpMessages messages = part.isAmqp() ? new AmqpMessages(rows) : null;
        for (int index = 0; index < found.length; index++) {
            found[index] = column(schema.fields()[index], part, fragment, messages);
        }
        return new ColumnarBatch(found, rows.count);
    }

    private ColumnVector column(StructField field, TaskPlan.Part part, TaskPlan.Fragment fragment,
            AmqpMessages messages) {
        DataType type = field.dataType();
        if (messages != null && (field.name().equals("body") || field.name().equals("key"))) {
            return new OfMessages(type, messages, field.name().equals("key"), rows.count);
        }
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
                    case "key" -> same.setNull(); // without a decoder, a record has none
                    default -> throw new IllegalStateException("no column of Java: " + field.name());
                }
                return same;
        }
    }

    /** A column, without nulls unless it says so. Each kind has one getter: no other is called for its type. */
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

    /** The bodies or the keys of messages. */
    private static final class OfMessages extends Column {
        private final AmqpMessages messages;
        private final boolean isKey;
        private final int count;

        OfMessages(DataType type, AmqpMessages messages, boolean isKey, int count) {
            super(type);
            this.messages = messages;
            this.isKey = isKey;
            this.count = count;
        }

        private AmqpMessages.Place at(int row) {
            return isKey ? messages.key(row) : messages.body(row);
        }

        @Override
        public boolean hasNull() {
            return numNulls() > 0;
        }

        @Override
        public int numNulls() {
            int found = 0;
            for (int row = 0; row < count; row++) {
                found += isNullAt(row) ? 1 : 0;
            }
            return found;
        }

        @Override
        public boolean isNullAt(int row) {
            return isKey && messages.key(row) == null;
        }

        @Override
        public byte[] getBinary(int row) {
            AmqpMessages.Place found = at(row);
            return Arrays.copyOfRange(found.data(), found.start(), found.start() + found.size());
        }

        @Override
        public BinaryView getBinaryView(int row) {
            AmqpMessages.Place found = at(row);
            return BinaryView.fromBytes(found.data(), found.start(), found.size());
        }
    }
}
