package ledgeroffload.spark;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;

/**
 * A cursor over encoded AMQP values, which checks each as the Python decoder does (`_amqp_values`), and keeps
 * nothing of it. {@link AmqpJson} reads the checked ones.
 *
 * <p>Input may be hostile. Invariants: a size or count is compared with the bytes around it before anything is
 * read or allocated by it; values are nested {@link #DEPTH_MAX} deep at most, and so is the recursion; a map
 * with many keys, or with keys that are no short texts, needs memory in proportion to its bytes.
 */
final class AmqpValues {
    /** The Python decoder would refuse the record. It stays raw then, so nobody asks where it is broken. */
    static final class Broken extends Exception {
        Broken() {
            super(null, null, false, false);
        }
    }

    static final Broken BROKEN = new Broken();

    private static final int DEPTH_MAX = 32;
    private static final long REPEATED_PER_BYTE = 16;
    private static final long REPEATED_SIZE = 64 << 10;
    /** With so many keys, comparing each with each is faster than a set. */
    private static final int FEW = 16;

    /** The next byte. */
    int at;
    private byte[] data;
    private int stop;
    private int depth;
    private long emptyElementsLeft;
    private long repeatedLeft;
    private final CharsetDecoder utf8 = StandardCharsets.UTF_8.newDecoder();
    private final CharBuffer decoded = CharBuffer.allocate(1024);

    /** Begin at the first byte of a record, which ends before {@code end}. */
    void begin(byte[] record, int start, int end) {
        data = record;
        at = start;
        stop = end;
        depth = 0;
        emptyElementsLeft = end - start;
        repeatedLeft = Math.max(REPEATED_PER_BYTE * (end - start), REPEATED_SIZE);
    }

    /** Step over the next byte, and return it. */
    int next() throws Broken {
        return data[take(1)] & 0xff;
    }

    /** Step over the next value. */
    void value() throws Broken {
        int code = next();
        if (code != 0) {
            constructed(code);
            return;
        }
        enter();
        value();
        value();
        depth--;
    }

    /** Step over a value whose constructor is {@code code} and was stepped over. */
    private void constructed(int code) throws Broken {
        switch (code) {
            case 0x40, 0x41, 0x42, 0x43, 0x44, 0x45 -> {
            }
            case 0x50, 0x51, 0x52, 0x53, 0x54, 0x55 -> take(1);
            case 0x56 -> expect((data[take(1)] & 0xfe) == 0);
            case 0x60, 0x61 -> take(2);
            case 0x70, 0x71, 0x72, 0x74 -> take(4);
            case 0x73 -> {
                int character = Chunk.intAt(data, take(4));
                expect(Character.isValidCodePoint(character) && (character < 0xd800 || character > 0xdfff));
            }
            case 0x80, 0x81, 0x82, 0x83, 0x84 -> take(8);
            case 0x94, 0x98 -> take(16);
            case 0xa0 -> take(number(1));
            case 0xb0 -> take(number(4));
            case 0xa1 -> text(number(1), false);
            case 0xb1 -> text(number(4), false);
            case 0xa3 -> text(number(1), true);
            case 0xb3 -> text(number(4), true);
            case 0xc0, 0xc1, 0xe0 -> compound(code, 1);
            case 0xd0, 0xd1, 0xf0 -> compound(code, 4);
            default -> throw BROKEN;
        }
    }

    static void expect(boolean isRight) throws Broken {
        if (!isRight) {
            throw BROKEN;
        }
    }

    private void enter() throws Broken {
        depth++;
        expect(depth <= DEPTH_MAX);
    }

    /** Step over so many bytes, and return the position of the first. */
    private int take(long size) throws Broken {
        if (size > stop - at) {
            throw BROKEN;
        }
        int from = at;
        at += (int) size;
        return from;
    }

    private long number(int width) throws Broken {
        return width == 1 ? next() : Chunk.intAt(data, take(4)) & 0xffffffffL;
    }

    private void text(long size, boolean isSymbol) throws Broken {
        int from = take(size);
        int end = at;
        while (from < end && data[from] >= 0) {
            from++;
        }
        if (from < end) {
            expect(!isSymbol && isUtf8(from, end));
        }
    }

    private boolean isUtf8(int from, int end) {
        ByteBuffer left = ByteBuffer.wrap(data, from, end - from);
        utf8.reset();
        try {
            for (boolean isMore = true; isMore;) {
                decoded.clear();
                var result = utf8.decode(left, decoded, true);
                if (result.isError()) {
                    result.throwException();
                }
                isMore = result.isOverflow();
            }
            return true;
        } catch (CharacterCodingException exc) {
            return false;
        }
    }

    private void compound(int code, int width) throws Broken {
        long size = number(width);
        expect(size <= stop - at);
        enter();
        int outer = stop;
        stop = at + (int) size;
        long count = number(width);
        switch (code & 0x0f) {
            case 1 -> map(count);
            default -> {
                if (code >= 0xe0) {
                    array(count);
                } else {
                    list(count);
                }
            }
        }
        expect(at == stop);
        stop = outer;
        depth--;
    }

    private void list(long count) throws Broken {
        expect(count <= stop - at);
        for (long left = count; left > 0; left--) {
            value();
        }
    }

    private void array(long count) throws Broken {
        int outer = depth;
        int start = at;
        int code = next();
        while (code == 0) {
            enter(); // a descriptor nests the elements as if it were written before each of them
            int descriptor = at;
            value();
            int kind = data[descriptor] & 0xff;
            expect(kind != 0 && kind != 0x45 && kind < 0xc0); // a scalar
            code = next();
        }
        repeatedLeft -= count * (at - start - 1);
        expect(repeatedLeft >= 0);
        if (code >= 0x40 && code <= 0x45) {
            emptyElementsLeft -= count;
            expect(emptyElementsLeft >= 0);
        } else {
            expect(count <= stop - at);
        }
        for (long left = count; left > 0; left--) {
            constructed(code);
        }
        depth = outer;
    }

    private void map(long count) throws Broken {
        expect(count <= stop - at && count % 2 == 0);
        int[] keys = new int[(int) Math.min(count / 2, FEW)];
        int pairs = 0;
        boolean areShortTexts = true;
        for (; pairs < count / 2; pairs++) {
            if (pairs == keys.length) {
                keys = Arrays.copyOf(keys, 2 * pairs);
            }
            keys[pairs] = at;
            value();
            int code = data[keys[pairs]] & 0xff;
            areShortTexts &= code == 0xa1 || code == 0xa3;
            value();
        }
        if (areShortTexts && pairs <= FEW) {
            for (int one = 1; one < pairs; one++) {
                for (int other = 0; other < one; other++) {
                    expect(!isSameShortText(keys[one], keys[other]));
                }
            }
            return;
        }
        AmqpJson reader = new AmqpJson();
        Set<String> seen = new HashSet<>();
        for (int pair = 0; pair < pairs; pair++) {
            reader.begin(data, keys[pair]);
            expect(seen.add(reader.key()));
        }
    }

    private boolean isSameShortText(int one, int other) {
        int size = data[one + 1] & 0xff;
        return size == (data[other + 1] & 0xff)
                && Arrays.equals(data, one + 2, one + 2 + size, data, other + 2, other + 2 + size);
    }
}
