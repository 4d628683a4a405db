package ledgeroffload.spark;

import com.github.luben.zstd.Zstd;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;

/** The compressions of blocks and sections: one zstd frame that states its size, or one raw block of lz4. */
final class Compressed {
    private static final long ZSTD_RATIO_MAX = 1 << 15;
    private static final long LZ4_RATIO_MAX = 255;

    private Compressed() {
    }

    /** Throw if so few stored bytes cannot yield {@code size}. Call it before anything is allocated. */
    static void possible(int stored, int codec, long size, String where, long position) {
        if (codec > 2) {
            throw new UnsupportedOperationException(
                    where + ": codec " + codec + " is not known; upgrade the program");
        }
        long most = codec == 0 ? Long.MAX_VALUE : (codec == 1 ? ZSTD_RATIO_MAX : LZ4_RATIO_MAX) * stored;
        if (size > most) {
            throw new Damage("plain size", where, position, "<= " + most, size);
        }
    }

    /** Put the plain bytes into {@code plain}, which must become exactly {@code size} bytes. */
    static void decode(byte[] data, int start, int stored, int codec, byte[] plain, int into, int size,
            String where, long position) {
        possible(stored, codec, size, where, position);
        long found = switch (codec) {
            case 0 -> {
                if (stored == size) {
                    System.arraycopy(data, start, plain, into, size);
                }
                yield stored;
            }
            case 1 -> zstd(data, start, stored, plain, into, size, where, position);
            default -> lz4(data, start, stored, plain, into, size, where, position);
        };
        if (found != size) {
            throw new Damage("plain size", where, position, size, found);
        }
    }

    private static long zstd(byte[] data, int start, int stored, byte[] plain, int into, int size,
            String where, long position) {
        long frame = Zstd.findFrameCompressedSize(data, start, stored);
        if (Zstd.isError(frame) || frame != stored) {
            throw new Damage("compressed bytes", where, position, "zstd",
                    Zstd.isError(frame) ? Zstd.getErrorName(frame) : "bytes behind the frame");
        }
        long stated = Zstd.getFrameContentSize(data, start, stored);
        if (stated != size) {
            throw new Damage("plain size", where, position, size, stated);
        }
        long found = Zstd.decompressByteArray(plain, into, size, data, start, stored);
        if (Zstd.isError(found)) {
            throw new Damage("compressed bytes", where, position, "zstd", Zstd.getErrorName(found));
        }
        return found;
    }

    private static long lz4(byte[] data, int start, int stored, byte[] plain, int into, int size,
            String where, long position) {
        try {
            return LZ4Factory.fastestInstance().safeDecompressor()
                    .decompress(data, start, stored, plain, into, size);
        } catch (LZ4Exception exc) {
            throw new Damage("compressed bytes", where, position, "lz4", exc.getMessage());
        }
    }
}
