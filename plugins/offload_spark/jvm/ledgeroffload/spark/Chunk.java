package ledgeroffload.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32;

/**
 * The checks of one stored chunk, and the walk over its entries.
 *
 * <p>Invariant: a length is compared with the end of the data section before anything is read or allocated
 * by it.
 */
final class Chunk {
    static final int HEADER_SIZE = 48;
    static final int SUB_BATCH_HEADER_SIZE = 11;
    /** The most bytes to which all sub-batches of one chunk together may decompress. */
    static final long SUB_BATCHES_MAX = 256L << 20;

    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle SHORT =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);

    private Chunk() {
    }

    static int intAt(byte[] data, int at) {
        return (int) INT.get(data, at);
    }

    static long longAt(byte[] data, int at) {
        return (long) LONG.get(data, at);
    }

    static int shortAt(byte[] data, int at) {
        return (short) SHORT.get(data, at) & 0xffff;
    }

    /** Check header and checksum of the chunk at {@code start} of a window against its row. */
    static void check(byte[] data, int start, Tail tail, int row, String where) {
        checkHeader(data, start, tail, row, where);
        CRC32 sum = new CRC32();
        sum.update(data, start, (int) tail.sizes[row]);
        if ((int) sum.getValue() != tail.checksums[row]) {
            throw new Damage("stored chunk checksum", where, tail.positions[row],
                    tail.checksums[row] & 0xffffffffL, sum.getValue());
        }
    }

    private static void checkHeader(byte[] data, int start, Tail tail, int row, String where) {
        long at = tail.positions[row];
        int magic = data[start] & 0xff;
        int type = data[start + 1] & 0xff;
        long entries = shortAt(data, start + 2);
        long records = intAt(data, start + 4) & 0xffffffffL;
        long time = longAt(data, start + 8);
        long offset = longAt(data, start + 24);
        long dataSize = intAt(data, start + 36) & 0xffffffffL;
        long trailerSize = intAt(data, start + 40) & 0xffffffffL;
        int filterSize = data[start + 44] & 0xff;
        Tail.expect("chunk magic", where, at, 0x50, magic);
        if (type > 2) {
            throw new Damage("chunk type", where, at + 1, "0, 1 or 2", type);
        }
        if (data[start + 45] != 0 || data[start + 46] != 0 || data[start + 47] != 0) {
            throw new Damage("chunk reserved", where, at + 45, "000000",
                    String.format("%02x%02x%02x", data[start + 45], data[start + 46], data[start + 47]));
        }
        if (entries < 1) {
            throw new Damage("chunk entries", where, at + 2, "at least 1", entries);
        }
        if (records < entries) {
            throw new Damage("chunk records", where, at + 4,
                    "at least one for each of " + entries + " entries", records);
        }
        if (type != 0 && records != 1) {
            throw new Damage("chunk records", where, at + 4, "1 in a tracking chunk", records);
        }
        if (filterSize > 0 && filterSize < 16) {
            throw new Damage("chunk filter_size_bytes", where, at + 44, "0, or 16 to 255", filterSize);
        }
        long size = HEADER_SIZE + filterSize + dataSize + trailerSize;
        if (size > 0xffffffffL) {
            throw new Damage("chunk data_size_bytes", where, at + 36, "a chunk smaller than 4 GiB", size);
        }
        Tail.expect("chunk type", where, at + 1, (int) tail.types[row], type);
        Tail.expect("chunk records", where, at + 4, tail.records[row], records);
        Tail.expect("chunk timestamp_ms", where, at + 8, tail.times[row], time);
        Tail.expect("chunk offset", where, at + 24, tail.offsets[row], offset);
        Tail.expect("chunk size_bytes", where, at + 36, tail.sizes[row], size);
    }

    /** Return the begin of the data section of a checked chunk at {@code start}. */
    static int dataStart(byte[] data, int start) {
        return start + HEADER_SIZE + (data[start + 44] & 0xff);
    }

    /** Return the end of the data section of a checked chunk at {@code start}. */
    static int dataStop(byte[] data, int start) {
        return dataStart(data, start) + intAt(data, start + 36);
    }

    static int entries(byte[] data, int start) {
        return shortAt(data, start + 2);
    }

    static long records(byte[] data, int start) {
        return intAt(data, start + 4) & 0xffffffffL;
    }

    /**
     * Put the places of {@code count} simple entries, which must fill [at, stop), into the arrays from
     * {@code index} on. Return false if there is anything else.
     */
    static boolean walk(byte[] data, int at, int stop, int count, int[] starts, int[] sizes, int index) {
        for (int end = index + count; index < end; index++) {
            if (stop - at < 4) {
                return false;
            }
            int size = intAt(data, at);
            at += 4;
            if (size < 0 || size > stop - at) {
                return false;
            }
            starts[index] = at;
            sizes[index] = size;
            at += size;
        }
        return at == stop;
    }
}
