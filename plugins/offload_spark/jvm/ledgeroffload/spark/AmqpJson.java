package ledgeroffload.spark;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Set;
import java.util.UUID;

/**
 * AMQP values as JSON, with the text that the Python decoder writes (`_amqp_json`).
 *
 * <p>It reads only what {@link AmqpValues} has checked, and so it checks nothing again. Invariant: the text is in
 * proportion to the record, because the descriptors that elements of arrays share were counted.
 */
final class AmqpJson {
    /** Milliseconds since 1970. */
    private record Time(long millis) {
    }

    /** A decimal as Python prints it. {@code value} is null for an infinity or NaN. */
    private record Decimal(String text, BigDecimal value) {
    }

    private static final long FIRST_MILLIS = -62_135_596_800_000L;
    private static final long LAST_MILLIS = 253_402_300_799_999L;
    private static final DateTimeFormatter TIMES =
            DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);
    /** The most digits that a double needs. */
    private static final int DIGITS_MAX = 17;
    /** The most digits of an integer of 64 bits. */
    private static final int DIGITS_OF_LONG = 20;

    private byte[] data;
    private int at;
    private final StringBuilder out = new StringBuilder();

    /** Begin at a checked value. */
    void begin(byte[] record, int start) {
        data = record;
        at = start;
        out.setLength(0);
    }

    /** Return the value as `as_bytes` of the Python decoder does: a text itself, all else as JSON in ASCII. */
    byte[] asBytes() {
        int code = next();
        if (isScalar(code)) {
            Object value = plain(scalar(code));
            if (value instanceof String text) {
                return text.getBytes(StandardCharsets.UTF_8);
            }
            plainJson(value);
        } else {
            at--;
            json();
        }
        return out.toString().getBytes(StandardCharsets.US_ASCII);
    }

    /** Return a list of checked values as JSON in ASCII. {@code places} has the position of each. */
    byte[] listed(byte[] record, int[] places, int count) {
        begin(record, places[0]);
        out.append('[');
        for (int index = 0; index < count; index++) {
            separate(index);
            at = places[index];
            json();
        }
        return out.append(']').toString().getBytes(StandardCharsets.US_ASCII);
    }

    /**
     * Return a text for the value as a key of a Python dict: two keys are equal there if their texts are. So a
     * number has one text, whatever its type, and a symbol that of the string.
     *
     * @throws AmqpValues.Broken if it cannot be a key
     */
    String key() throws AmqpValues.Broken {
        int code = next();
        if (code == 0) {
            String descriptor = key();
            return "described " + descriptor.length() + " " + descriptor + key();
        }
        if (!isScalar(code)) {
            throw AmqpValues.BROKEN;
        }
        Object value = scalar(code);
        if (value instanceof String text) {
            return "text " + text;
        } else if (value instanceof byte[] bytes) {
            return "bytes " + base64(bytes);
        } else if (value instanceof Boolean bool) {
            return bool ? "1" : "0";
        } else if (value instanceof Time time) {
            return Long.toString(time.millis());
        } else if (value instanceof Double number) {
            return key(number);
        } else if (value instanceof Decimal decimal) {
            return decimal.value() != null ? key(decimal.value()) : key(Double.parseDouble(decimal.text()));
        }
        return String.valueOf(value);
    }

    private String key(double value) {
        if (Double.isNaN(value)) {
            return "NaN " + at; // equal to no other key
        }
        return Double.isInfinite(value) ? Double.toString(value) : key(new BigDecimal(value));
    }

    private static String key(BigDecimal value) {
        BigDecimal exact = value.stripTrailingZeros();
        // A number of 64 bits is equal to an integer.
        return exact.precision() - exact.scale() <= DIGITS_OF_LONG && exact.scale() <= 0 ? exact.toPlainString()
                : exact.toString();
    }

    /** Return whether the keys of the next pairs of a map have different texts, as those of an object must. */
    boolean areNames(long pairs) {
        Set<String> names = new HashSet<>();
        for (long left = pairs; left > 0; left--) {
            if (!names.add(text())) {
                return false;
            }
            skip();
        }
        return true;
    }

    /** Return the text of a key as the name in a JSON object, and step over the key. */
    String text() {
        int code = next();
        if (code == 0) {
            return describedRepr();
        }
        Object value = plain(scalar(code));
        if (value instanceof byte[] bytes) {
            return base64(bytes);
        }
        return value instanceof Double number ? repr(number) : String.valueOf(value);
    }

    /** Return the value if it is an integer or a time, and otherwise 0. */
    long integer() {
        int code = next();
        Object value = isScalar(code) ? scalar(code) : null;
        return value instanceof Long number ? number : value instanceof Time time ? time.millis() : 0;
    }

    int at() {
        return at;
    }

    /** Step over the next value. The recursion ends: the nesting was checked. */
    void skip() {
        int code = next();
        if (code == 0) {
            skip();
            skip();
        } else {
            skip(code);
        }
    }

    /** Step over a value behind its constructor, which tells the width of the value, or that of its size. */
    private void skip(int code) {
        int size = switch (code >> 4) {
            case 0x4 -> 0;
            case 0x5 -> 1;
            case 0x6 -> 2;
            case 0x7 -> 4;
            case 0x8 -> 8;
            case 0x9 -> 16;
            default -> size(code);
        };
        at += size;
    }

    /**
     * Return an element of an array, whose content begins at the next byte, as a value by itself: behind the
     * descriptors and the constructor that all elements share.
     */
    byte[] element(int index) {
        int head = at;
        int code = next();
        while (code == 0) {
            skip();
            code = next();
        }
        int elements = at;
        for (int left = index; left > 0; left--) {
            skip(code);
        }
        int begin = at;
        skip(code);
        byte[] found = Arrays.copyOfRange(data, head, elements + at - begin);
        System.arraycopy(data, begin, found, elements - head, at - begin);
        return found;
    }

    /** Append the next value as JSON. The recursion ends: the nesting was checked. */
    private void json() {
        int code = next();
        if (code != 0) {
            constructed(code);
            return;
        }
        out.append("{\"descriptor\":");
        json();
        out.append(",\"value\":");
        json();
        out.append('}');
    }

    private void constructed(int code) {
        switch (code) {
            case 0x45 -> out.append("[]");
            case 0xc0, 0xd0 -> {
                out.append('[');
                long count = count(code);
                for (long index = 0; index < count; index++) {
                    separate(index);
                    json();
                }
                out.append(']');
            }
            case 0xc1, 0xd1 -> map(count(code) / 2);
            case 0xe0, 0xf0 -> array(count(code));
            default -> plainJson(plain(scalar(code)));
        }
    }

    private void map(long pairs) {
        int begin = at;
        boolean areNames = areNames(pairs); // before anything is written: maps may be nested
        at = begin;
        if (!areNames) {
            listOfPairs(pairs);
            return;
        }
        out.append('{');
        for (long index = 0; index < pairs; index++) {
            separate(index);
            quote(text());
            out.append(':');
            json();
        }
        out.append('}');
    }

    private void listOfPairs(long pairs) {
        out.append("{\"encoding\":\"pairs\",\"value\":[");
        for (long index = 0; index < pairs; index++) {
            separate(index);
            out.append('[');
            json();
            out.append(',');
            json();
            out.append(']');
        }
        out.append("]}");
    }

    private void array(long count) {
        int mark = out.length();
        int descriptors = 0;
        int code = next();
        for (; code == 0; code = next()) {
            out.append("{\"descriptor\":");
            json();
            out.append(",\"value\":");
            descriptors++;
        }
        String shared = out.substring(mark);
        out.setLength(mark);
        out.append('[');
        for (long index = 0; index < count; index++) {
            separate(index);
            out.append(shared);
            constructed(code);
            out.append("}".repeat(descriptors));
        }
        out.append(']');
    }

    private void separate(long index) {
        if (index > 0) {
            out.append(',');
        }
    }

    private int next() {
        return data[at++] & 0xff;
    }

    /** Step over the size and the count of a list, map or array, and return the count. */
    private long count(int code) {
        if ((code & 0x10) == 0) {
            at += 2;
            return data[at - 1] & 0xff;
        }
        at += 8;
        return Chunk.intAt(data, at - 4) & 0xffffffffL;
    }

    private static boolean isScalar(int code) {
        return code != 0 && code != 0x45 && code < 0xc0;
    }

    /** Return a scalar, and step over it: null, a Boolean, Long, BigInteger, Double, String, or what is above. */
    private Object scalar(int code) {
        return switch (code) {
            case 0x40 -> null;
            case 0x41 -> true;
            case 0x42 -> false;
            case 0x43, 0x44 -> 0L;
            case 0x50, 0x52, 0x53 -> (long) next();
            case 0x51, 0x54, 0x55 -> (long) (byte) next();
            case 0x56 -> next() == 1;
            case 0x60 -> (long) Chunk.shortAt(data, over(2));
            case 0x61 -> (long) (short) Chunk.shortAt(data, over(2));
            case 0x70 -> Chunk.intAt(data, over(4)) & 0xffffffffL;
            case 0x71 -> (long) Chunk.intAt(data, over(4));
            case 0x72 -> (double) Float.intBitsToFloat(Chunk.intAt(data, over(4)));
            case 0x73 -> Character.toString(Chunk.intAt(data, over(4)));
            case 0x74 -> decimal(4, 8, 101, 7);
            case 0x80 -> unsigned(Chunk.longAt(data, over(8)));
            case 0x81 -> Chunk.longAt(data, over(8));
            case 0x82 -> Double.longBitsToDouble(Chunk.longAt(data, over(8)));
            case 0x83 -> new Time(Chunk.longAt(data, over(8)));
            case 0x84 -> decimal(8, 10, 398, 16);
            case 0x94 -> decimal(16, 14, 6176, 34);
            case 0x98 -> new UUID(Chunk.longAt(data, over(8)), Chunk.longAt(data, over(8)));
            case 0xa0, 0xb0 -> {
                int size = size(code);
                yield Arrays.copyOfRange(data, over(size), at);
            }
            default -> {
                int size = size(code);
                yield new String(data, over(size), size, StandardCharsets.UTF_8);
            }
        };
    }

    private int over(int size) {
        at += size;
        return at - size;
    }

    private int size(int code) {
        return (code & 0x10) == 0 ? next() : Chunk.intAt(data, over(4));
    }

    private static Object unsigned(long value) {
        return value >= 0 ? (Object) value : new BigInteger(Long.toUnsignedString(value));
    }

    /** Return an IEEE 754 decimal whose coefficient is a binary integer, as `_decimal` of Python does. */
    private Decimal decimal(int size, int exponentBits, int bias, int digits) {
        BigInteger bits = new BigInteger(1, data, over(size), size);
        int sign = 8 * size - 1;
        String minus = bits.testBit(sign) ? "-" : "";
        if (bits.shiftRight(sign - 4).intValue() % 16 == 15) {
            return new Decimal(minus + (bits.testBit(sign - 5) ? "NaN" : "Infinity"), null);
        }
        boolean isHidden = bits.testBit(sign - 1) && bits.testBit(sign - 2);
        int width = sign - exponentBits - (isHidden ? 2 : 0);
        int exponent = (bits.shiftRight(width).intValue() & (1 << exponentBits) - 1) - bias;
        BigInteger coefficient = bits.mod(BigInteger.ONE.shiftLeft(width));
        if (isHidden) {
            coefficient = coefficient.or(BigInteger.valueOf(4).shiftLeft(width));
        }
        if (coefficient.compareTo(BigInteger.TEN.pow(digits)) >= 0) {
            coefficient = BigInteger.ZERO; // not canonical: by the standard it means zero
        }
        BigDecimal value = new BigDecimal(coefficient, -exponent);
        return new Decimal(minus + value, minus.isEmpty() ? value : value.negate());
    }

    /** Return a scalar as JSON has it: null, a Boolean, number, String, or bytes. */
    private static Object plain(Object value) {
        if (value instanceof Time time) {
            boolean hasYear = time.millis() >= FIRST_MILLIS && time.millis() <= LAST_MILLIS;
            return hasYear ? (Object) TIMES.format(Instant.ofEpochMilli(time.millis())) : (Object) time.millis();
        } else if (value instanceof Double number && !Double.isFinite(number)) {
            return number.toString();
        } else if (value instanceof Decimal decimal) {
            return decimal.text();
        }
        return value instanceof UUID uuid ? uuid.toString() : value;
    }

    private void plainJson(Object value) {
        if (value instanceof String text) {
            quote(text);
        } else if (value instanceof byte[] bytes) {
            out.append("{\"encoding\":\"base64\",\"value\":\"").append(base64(bytes)).append("\"}");
        } else {
            out.append(value instanceof Double number ? repr(number) : String.valueOf(value));
        }
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private void quote(String text) {
        out.append('"');
        for (int index = 0; index < text.length(); index++) {
            char each = text.charAt(index);
            switch (each) {
                case '"', '\\' -> out.append('\\').append(each);
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                case '\f' -> out.append("\\f");
                case '\b' -> out.append("\\b");
                default -> {
                    if (each >= ' ' && each <= '~') {
                        out.append(each);
                    } else {
                        out.append("\\u").append(HexFormat.of().toHexDigits(each));
                    }
                }
            }
        }
        out.append('"');
    }

    /** Return a number as Python prints it: the shortest digits that are read back as this number. */
    private static String repr(double value) {
        if (value == 0) {
            return 1 / value < 0 ? "-0.0" : "0.0";
        }
        BigDecimal exact = new BigDecimal(value);
        BigDecimal found = exact;
        for (int digits = 1; digits <= DIGITS_MAX; digits++) {
            found = exact.round(new MathContext(digits, RoundingMode.HALF_EVEN));
            if (found.doubleValue() == value) {
                break;
            }
            // Below a power of two, numbers are closer to each other than above it.
            found = exact.round(new MathContext(digits, RoundingMode.UP));
            if (found.doubleValue() == value) {
                break;
            }
        }
        found = found.stripTrailingZeros();
        int exponent = found.precision() - found.scale() - 1;
        if (exponent >= -4 && exponent < 16) {
            String text = found.toPlainString();
            return text.contains(".") ? text : text + ".0";
        }
        String digits = found.unscaledValue().abs().toString();
        String rest = digits.length() > 1 ? "." + digits.substring(1) : "";
        String sign = (exponent < 0 ? "-" : "+") + (Math.abs(exponent) < 10 ? "0" : "");
        return (value < 0 ? "-" : "") + digits.charAt(0) + rest + "e" + sign + Math.abs(exponent);
    }

    /** Return the text that Python makes of a described value in the place of a name: that of a dict. */
    private String describedRepr() {
        return "{'descriptor': " + keyRepr() + ", 'value': " + keyRepr() + "}";
    }

    private String keyRepr() {
        int code = next();
        if (code == 0) {
            return describedRepr();
        }
        Object value = plain(scalar(code));
        if (value instanceof String text) {
            return repr(text);
        } else if (value instanceof byte[] bytes) {
            return "{'encoding': 'base64', 'value': '" + base64(bytes) + "'}";
        } else if (value instanceof Boolean bool) {
            return bool ? "True" : "False";
        } else if (value instanceof Double number) {
            return repr(number);
        }
        return value == null ? "None" : value.toString();
    }

    private static String repr(String text) {
        char mark = text.contains("'") && !text.contains("\"") ? '"' : '\'';
        StringBuilder found = new StringBuilder().append(mark);
        text.codePoints().forEach(each -> {
            switch (each) {
                case '\n' -> found.append("\\n");
                case '\r' -> found.append("\\r");
                case '\t' -> found.append("\\t");
                default -> {
                    if (each == mark || each == '\\') {
                        found.append('\\').appendCodePoint(each);
                    } else if (isPrintable(each)) {
                        found.appendCodePoint(each);
                    } else {
                        found.append(each < 0x100 ? "\\x" : each < 0x10000 ? "\\u" : "\\U").append(
                                HexFormat.of().toHexDigits(each, each < 0x100 ? 2 : each < 0x10000 ? 4 : 8));
                    }
                }
            }
        });
        return found.append(mark).toString();
    }

    /** Return what `str.isprintable` does. Its table of Unicode is newer or older than that of this Java. */
    private static boolean isPrintable(int each) {
        return switch (Character.getType(each)) {
            case Character.CONTROL, Character.FORMAT, Character.SURROGATE, Character.PRIVATE_USE,
                    Character.UNASSIGNED, Character.LINE_SEPARATOR, Character.PARAGRAPH_SEPARATOR -> false;
            case Character.SPACE_SEPARATOR -> each == ' ';
            default -> true;
        };
    }
}
