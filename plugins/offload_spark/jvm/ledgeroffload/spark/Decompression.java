package ledgeroffload.spark;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;
import org.xerial.snappy.SnappyFramedInputStream;

/**
 * The compressions of a sub-batch, by the libraries that Spark ships. They are undone without trust in the
 * size of the header: memory grows with the bytes that a stream really yields, and ends one byte behind the
 * claim. A payload is one whole stream, with nothing behind it.
 */
final class Decompression {
    private static final String[] NAMES = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final byte[] SNAPPY_HEAD = {(byte) 0xff, 6, 0, 0, 's', 'N', 'a', 'P', 'p', 'Y'};
    private static final int STEP = 1 << 20;

    private Decompression() {
    }

    /** Return the {@code claimed} bytes from which the payload was made. The caller has bounded the claim. */
    static byte[] of(byte[] data, int start, int size, int codec, int claimed, String where, long position) {
        if (codec >= NAMES.length) {
            throw new UnsupportedOperationException(where + " at byte " + position
                    + ": unknown sub-batch compression " + codec + "; upgrade the program");
        }
        byte[] found;
        try {
            found = switch (codec) {
                case 0 -> Arrays.copyOfRange(data, start, start + size);
                case 1 -> gzip(data, start, size, claimed);
                case 3 -> Lz4Frame.decode(data, start, size, claimed + 1);
                default -> stream(data, start, size, codec, claimed);
            };
        } catch (IOException | RuntimeException exc) {
            throw new Damage(NAMES[codec] + " stream of a sub-batch", where, position, "one whole stream",
                    exc.getMessage());
        }
        if (found.length != claimed) {
            throw new Damage("sub-batch size", where, position, claimed,
                    found.length > claimed ? "more than " + claimed : found.length);
        }
        return found;
    }

    private static byte[] stream(byte[] data, int start, int size, int codec, int claimed)
            throws IOException {
        if (codec == 2 && (size < SNAPPY_HEAD.length || !Arrays.equals(
                data, start, start + SNAPPY_HEAD.length, SNAPPY_HEAD, 0, SNAPPY_HEAD.length))) {
            throw new IOException("no snappy stream identifier");
        }
        if (codec == 4) {
            long frame = Zstd.findFrameCompressedSize(data, start, size);
            if (Zstd.isError(frame)) {
                throw new IOException(Zstd.getErrorName(frame));
            }
            mustEnd(frame == size);
        }
        ByteArrayInputStream from = new ByteArrayInputStream(data, start, size);
        try (InputStream in = codec == 2
                ? new SnappyFramedInputStream(from, true) : new ZstdInputStreamNoFinalizer(from)) {
            byte[] found = new byte[Math.min(claimed, STEP) + 1];
            int at = 0;
            while (at <= claimed) {
                if (at == found.length) {
                    found = Arrays.copyOf(found, (int) Math.min(2L * at, claimed + 1L));
                }
                int more = in.read(found, at, found.length - at);
                if (more < 0) {
                    mustEnd(from.available() == 0);
                    break;
                }
                at += more;
            }
            return Arrays.copyOf(found, at);
        }
    }

    /** Undo one member of gzip. Java's own stream would accept another one, or garbage, behind it. */
    private static byte[] gzip(byte[] data, int start, int size, int claimed) throws IOException {
        int stop = start + size;
        int at = gzipHeader(data, start, stop);
        Inflater inflater = new Inflater(true);
        try {
            inflater.setInput(data, at, stop - at);
            byte[] found = new byte[Math.min(claimed, STEP) + 1];
            int filled = 0;
            while (!inflater.finished() && filled <= claimed) {
                if (filled == found.length) {
                    found = Arrays.copyOf(found, (int) Math.min(2L * filled, claimed + 1L));
                }
                int more = inflater.inflate(found, filled, found.length - filled);
                if (more == 0 && !inflater.finished()) {
                    throw new EOFException("a stream cut short");
                }
                filled += more;
            }
            found = Arrays.copyOf(found, filled);
            if (filled <= claimed) {
                int end = stop - inflater.getRemaining();
                mustEnd(stop - end == 8);
                CRC32 sum = new CRC32();
                sum.update(found);
                if (Integer.reverseBytes(Chunk.intAt(data, end)) != (int) sum.getValue()
                        || Integer.reverseBytes(Chunk.intAt(data, end + 4)) != filled) {
                    throw new IOException("a wrong checksum or size");
                }
            }
            return found;
        } catch (DataFormatException exc) {
            throw new IOException(exc.getMessage(), exc);
        } finally {
            inflater.end();
        }
    }

    /** Return the begin of the deflated bytes (RFC 1952). */
    private static int gzipHeader(byte[] data, int start, int stop) throws IOException {
        if (stop - start < 18 || data[start] != 0x1f || data[start + 1] != (byte) 0x8b || data[start + 2] != 8
                || (data[start + 3] & 0xe0) != 0) {
            throw new IOException("no gzip header");
        }
        int flags = data[start + 3];
        int at = start + 10;
        if ((flags & 4) != 0) {
            int more = (data[at] & 0xff) | (data[at + 1] & 0xff) << 8;
            at += 2 + more;
        }
        for (int text = 0; text < Integer.bitCount(flags & 0x18); text++) {
            while (at < stop && data[at] != 0) {
                at++;
            }
            at++;
        }
        at += (flags & 2) != 0 ? 2 : 0;
        if (at > stop) {
            throw new EOFException("a stream cut short");
        }
        return at;
    }

    private static void mustEnd(boolean isEnd) throws IOException {
        if (!isEnd) {
            throw new IOException("bytes missing at the end of the stream, or more behind it");
        }
    }
}
