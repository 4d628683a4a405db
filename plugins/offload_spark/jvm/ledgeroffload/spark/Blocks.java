package ledgeroffload.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * The blocks of a fragment that is compressed: which chunks they hold, and where they are in the object.
 *
 * <p>Invariants: blocks hold exactly the chunks of the table; one holds less than 64 KiB before its last chunk,
 * so a forged record can ask for little more than that chunk.
 */
final class Blocks {
    private static final int RECORD_SIZE = 16;
    private static final int BLOCK_SIZE = 64 * 1024;

    final int count;
    /** The number of the first chunk of each block, and that behind the last. */
    final int[] firsts;
    /** The position of each block in the object, and that behind the last. */
    final long[] positions;
    private final int[] codecs;
    private final int[] checksums;

    Blocks(ByteBuffer raw, long[] sizes, int codec, String where, long position) {
        count = raw.limit() / RECORD_SIZE;
        firsts = new int[count + 1];
        positions = new long[count + 1];
        codecs = new int[count];
        checksums = new int[count];
        positions[0] = Tail.HEADER_SIZE;
        long chunks = 0;
        boolean isMalformed = raw.limit() % RECORD_SIZE != 0;
        for (int number = 0; number < count; number++) {
            int at = number * RECORD_SIZE;
            long own = raw.getInt(at) & 0xffffffffL;
            long size = raw.getInt(at + 4) & 0xffffffffL;
            codecs[number] = raw.get(at + 8) & 0xff;
            checksums[number] = raw.getInt(at + 12);
            isMalformed |= own == 0 || size == 0 || (raw.getInt(at + 8) & 0xffffff) != 0
                    || codecs[number] != 0 && codecs[number] != codec;
            chunks += own;
            firsts[number + 1] = (int) Math.min(chunks, Integer.MAX_VALUE);
            positions[number + 1] = positions[number] + size;
        }
        if (isMalformed || chunks != sizes.length) {
            throw new Damage("blocks", where, position, "blocks of " + sizes.length + " chunks",
                    count + " blocks of " + chunks + " chunks");
        }
        for (int number = 0; number < count; number++) {
            long before = 0;
            for (int row = firsts[number]; row < firsts[number + 1] - 1; row++) {
                before += sizes[row];
            }
            if (before >= BLOCK_SIZE) {
                throw new Damage("plain size of a block", where, position,
                        "less than " + BLOCK_SIZE + " bytes before its last chunk", before);
            }
        }
    }

    /** Return the number of the block that holds a chunk. */
    int holding(int row) {
        int found = Arrays.binarySearch(firsts, row);
        return found >= 0 ? found : -found - 2;
    }

    /** Check one stored block. It begins at {@code start} of {@code data}. */
    void check(int number, byte[] data, int start, String where) {
        CRC32C sum = new CRC32C();
        sum.update(data, start, (int) (positions[number + 1] - positions[number]));
        if ((int) sum.getValue() != checksums[number]) {
            throw new Damage("checksum of a block", where, positions[number],
                    checksums[number] & 0xffffffffL, sum.getValue());
        }
    }

    /** Throw if a block of so few bytes cannot have so many plain ones. */
    void possible(int number, int stored, int size, String where) {
        Compressed.possible(stored, codecs[number], size, where, positions[number]);
    }

    /** Put the {@code size} plain bytes of one stored block, which was checked, at {@code into} of {@code plain}. */
    void decode(int number, byte[] data, int start, byte[] plain, int into, int size, String where) {
        int stored = (int) (positions[number + 1] - positions[number]);
        Compressed.decode(data, start, stored, codecs[number], plain, into, size, where, positions[number]);
    }
}
