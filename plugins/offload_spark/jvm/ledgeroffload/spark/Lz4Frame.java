package ledgeroffload.spark;

import java.io.IOException;
import java.util.Arrays;
import net.jpountz.xxhash.XXHash32;
import net.jpountz.xxhash.XXHashFactory;

/**
 * One frame of lz4. The stream of lz4-java refuses frames whose blocks depend on those before them, which many
 * clients write, so the blocks are decoded here.
 *
 * <p>Invariants: nothing is read behind the frame, nothing is copied from before its output, and the output
 * never grows beyond {@code limit} bytes.
 */
final class Lz4Frame {
    private static final int MAGIC = 0x184D2204;
    private static final XXHash32 HASH = XXHashFactory.fastestJavaInstance().hash32();

    private final byte[] data;
    private final int stop;
    private final int limit;
    private int at;
    private byte[] out;
    private int filled;

    private Lz4Frame(byte[] data, int start, int size, int limit) {
        this.data = data;
        this.at = start;
        this.stop = start + size;
        this.limit = limit;
        this.out = new byte[Math.min(limit, 1 << 16)];
    }

    /** Return the content of the frame, or its first {@code limit} bytes if it has more. */
    static byte[] decode(byte[] data, int start, int size, int limit) throws IOException {
        Lz4Frame frame = new Lz4Frame(data, start, size, limit);
        frame.read();
        return Arrays.copyOf(frame.out, frame.filled);
    }

    private void read() throws IOException {
        if (number() != MAGIC) {
            throw new IOException("no lz4 frame");
        }
        int descriptor = at;
        int flags = next();
        int block = next();
        boolean hasSize = (flags & 8) != 0;
        if (flags >> 6 != 1 || (flags & 3) != 0 || (block & 0x8f) != 0 || block >> 4 < 4) {
            throw new IOException("an lz4 frame of another kind");
        }
        int blockMax = 1 << 2 * (block >> 4) + 8;
        long size = hasSize ? (number() & 0xffffffffL) | (long) number() << 32 : -1;
        int sum = HASH.hash(data, descriptor, at - descriptor, 0) >> 8 & 0xff;
        if (next() != sum) {
            throw new IOException("a wrong checksum of the header");
        }
        for (int stored = number(); stored != 0; stored = number()) {
            int length = stored & 0x7fffffff;
            if (length > blockMax || length > stop - at) {
                throw new IOException("a block that is too long");
            }
            int begin = at;
            boolean isWhole = stored < 0 ? copied(length)
                    : decoded(begin + length, (flags & 0x20) != 0 ? filled : 0, filled, blockMax);
            if (!isWhole) {
                return; // beyond the limit
            }
            at = begin + length;
            if ((flags & 0x10) != 0 && number() != HASH.hash(data, begin, length, 0)) {
                throw new IOException("a wrong checksum of a block");
            }
        }
        if ((flags & 4) != 0 && number() != HASH.hash(out, 0, filled, 0)) {
            throw new IOException("a wrong checksum of the content");
        }
        if (at != stop || hasSize && size != filled) {
            throw new IOException("another size, or bytes behind the frame");
        }
    }

    private boolean copied(int length) {
        int taken = room(length);
        System.arraycopy(data, at, out, filled, taken);
        filled += taken;
        return taken == length;
    }

    /** Decode a block that ends at {@code end}. A match may begin at {@code least} of the output at the earliest. */
    private boolean decoded(int end, int least, int begin, int blockMax) throws IOException {
        while (true) {
            int token = within(end);
            int literals = length(token >> 4, end);
            if (literals > end - at || literals > blockMax - (filled - begin)) {
                throw new IOException("literals that are too long");
            }
            if (!copied(literals)) {
                return false;
            }
            at += literals;
            if (at == end) {
                return true;
            }
            int distance = within(end) | within(end) << 8;
            int match = length(token & 15, end) + 4;
            if (distance == 0 || distance > filled - least || match > blockMax - (filled - begin)) {
                throw new IOException("a match that is outside of the output");
            }
            int taken = room(match);
            for (int each = 0; each < taken; each++, filled++) { // it may overlap itself
                out[filled] = out[filled - distance];
            }
            if (taken < match) {
                return false;
            }
        }
    }

    private int length(int bits, int end) throws IOException {
        int length = bits;
        if (bits == 15) {
            int more;
            do {
                more = within(end);
                length += more; // a block has at most 4 MiB, so the sum has less than 2^31
            } while (more == 255);
        }
        return length;
    }

    /** Make room for {@code length} bytes, and return how many of them the limit allows. */
    private int room(int length) {
        int taken = Math.min(length, limit - filled);
        if (filled + taken > out.length) {
            out = Arrays.copyOf(out, (int) Math.min(limit, Math.max(2L * out.length, filled + taken)));
        }
        return taken;
    }

    private int within(int end) throws IOException {
        if (at >= end) {
            throw new IOException("a block cut short");
        }
        return data[at++] & 0xff;
    }

    private int next() throws IOException {
        return within(stop);
    }

    private int number() throws IOException {
        return next() | next() << 8 | next() << 16 | next() << 24;
    }
}
