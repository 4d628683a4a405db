package ledgeroffload.spark;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/**
 * The bodies and keys of a batch whose records are AMQP messages, with the bytes that the Python decoder returns
 * for any record.
 *
 * <p>A record is decoded when Spark asks for its row, and the last row is kept, so memory is in proportion to one
 * record. A body of one data section is found by stepping from section to section, and a body, text or key that is
 * in the record is not copied. A record that is no message is its own body, and has no key.
 */
final class AmqpMessages {
    private static final int HEADER = 0x70;
    private static final int ANNOTATIONS = 0x72;
    private static final int PROPERTIES = 0x73;
    private static final int DATA = 0x75;
    private static final int SEQUENCE = 0x76;
    private static final int VALUE = 0x77;
    private static final int FOOTER = 0x78;
    private static final int HEADER_FIELDS = 5;
    private static final int PROPERTY_FIELDS = 13;
    private static final int SUBJECT = 3;
    private static final int NULL = 0x40;
    /** The least constructor of an array. */
    private static final int ARRAY = 0xe0;
    private static final byte[] ROUTING_KEY = "x-routing-key".getBytes(StandardCharsets.US_ASCII);

    private static final Map<String, Integer> SYMBOLS = Map.of("amqp:header:list", HEADER,
            "amqp:delivery-annotations:map", 0x71, "amqp:message-annotations:map", ANNOTATIONS,
            "amqp:properties:list", PROPERTIES, "amqp:application-properties:map", 0x74,
            "amqp:data:binary", DATA, "amqp:amqp-sequence:list", SEQUENCE, "amqp:amqp-value:*", VALUE,
            "amqp:footer:map", FOOTER);

    /** Some bytes of a record, or bytes of their own. */
    record Place(byte[] data, int start, int size) {
        static Place of(byte[] own) {
            return new Place(own, 0, own.length);
        }
    }

    private final byte[] data;
    private final int[] starts;
    private final int[] sizes;
    private final AmqpValues values = new AmqpValues();
    private final AmqpJson json = new AmqpJson();

    private int bodyRow = -1;
    private Place body;
    private int keyRow = -1;
    private Place key;

    /** What is in the record that was decoded: its kind of body, and where its sections' values begin. */
    private int kind;
    private int[] bodies = new int[4];
    private int bodyCount;
    private final int[] sections = new int[FOOTER + 1];

    AmqpMessages(Rows rows) {
        data = rows.data;
        starts = rows.starts;
        sizes = rows.sizes;
    }

    /** Return the body of a row. */
    Place body(int row) {
        if (row != bodyRow) {
            body = bodyOf(starts[row], starts[row] + sizes[row]);
            bodyRow = row;
        }
        return body;
    }

    /** Return the key of a row: the routing key that the broker added, else the subject; null if it has none. */
    Place key(int row) {
        if (row != keyRow) {
            key = keyOf(starts[row], starts[row] + sizes[row]);
            keyRow = row;
        }
        return key;
    }

    private Place bodyOf(int start, int stop) {
        Place found = stepped(start, stop);
        if (found != null) {
            return found;
        }
        try {
            decode(start, stop);
        } catch (AmqpValues.Broken exc) {
            return new Place(data, start, stop - start);
        }
        if (kind == SEQUENCE) {
            return Place.of(json.listed(data, bodies, bodyCount));
        } else if (bodyCount == 0) {
            return new Place(data, start, 0);
        } else if (bodyCount > 1) {
            ByteArrayOutputStream joined = new ByteArrayOutputStream();
            for (int index = 0; index < bodyCount; index++) {
                Place one = content(bodies[index]);
                joined.write(one.data, one.start, one.size);
            }
            return Place.of(joined.toByteArray());
        }
        return isBinary(codeAt(bodies[0])) ? content(bodies[0]) : asBytes(bodies[0]);
    }

    /**
     * Return the body of a message with exactly one data section, without a look into the sections beside it.
     * Return null for any other record, and for one in an unusual encoding: `_stepped_body` of Python.
     */
    private Place stepped(int start, int stop) {
        Place found = null;
        int at = start;
        while (at < stop) {
            if (stop - at < 4 || Chunk.shortAt(data, at) != 0x0053) {
                return null;
            }
            int section = data[at + 2] & 0xff;
            int code = data[at + 3] & 0xff;
            int width = switch (code) {
                case 0x45 -> 0;
                case 0xa0, 0xc0, 0xc1 -> 1;
                case 0xb0, 0xd0, 0xd1 -> 4;
                default -> -1;
            };
            at += 4;
            if (width < 0 || width > stop - at) {
                return null;
            }
            long size = switch (width) {
                case 0 -> 0;
                case 1 -> data[at] & 0xff;
                default -> Chunk.intAt(data, at) & 0xffffffffL;
            };
            at += width;
            boolean isBinary = code == 0xa0 || code == 0xb0;
            if (size > stop - at || isBinary != (section == DATA)) {
                return null;
            }
            if (isBinary) {
                if (found != null) {
                    return null;
                }
                found = new Place(data, at, (int) size);
            } else if (section < HEADER || section > FOOTER || section == SEQUENCE || section == VALUE) {
                return null;
            }
            at += (int) size;
        }
        return found;
    }

    private Place keyOf(int start, int stop) {
        try {
            decode(start, stop);
        } catch (AmqpValues.Broken exc) {
            return null;
        }
        int found = sections[ANNOTATIONS] == 0 ? 0 : routingKey(sections[ANNOTATIONS]);
        if (found == 0) {
            return sections[PROPERTIES] == 0 ? null : subject(sections[PROPERTIES]);
        }
        return codeAt(found) == NULL ? null : asBytes(found);
    }

    /** Return the position of the routing key in the annotations; 0 if they have none. */
    private int routingKey(int map) {
        int found = 0;
        boolean areTexts = true;
        json.begin(data, first(map));
        for (long left = count(map); left > 0; left -= 2) {
            int at = json.at();
            boolean isText = isText(codeAt(at));
            areTexts &= isText;
            json.skip();
            if (isText && isRoutingKey(content(at))) {
                found = json.at();
            }
            json.skip();
        }
        if (found == 0 || areTexts) {
            return found;
        }
        // Two keys may have the same text. Then the annotations are no JSON object, and have no names.
        json.begin(data, first(map));
        return json.areNames(count(map) / 2) ? found : 0;
    }

    private static boolean isRoutingKey(Place text) {
        return Arrays.equals(ROUTING_KEY, 0, ROUTING_KEY.length, text.data, text.start, text.start + text.size);
    }

    /** Return the subject among the properties; null if there is none. */
    private Place subject(int list) {
        if (count(list) <= SUBJECT) {
            return null;
        }
        json.begin(data, first(list));
        if (codeAt(list) < ARRAY) {
            for (int index = 0; index < SUBJECT; index++) {
                json.skip();
            }
            return codeAt(json.at()) == NULL ? null : asBytes(json.at());
        }
        byte[] own = json.element(SUBJECT);
        if (own[0] == NULL) {
            return null;
        }
        json.begin(own, 0);
        return Place.of(json.asBytes());
    }

    /** Find and check all sections of a record, as `decode` of Python does. */
    private void decode(int start, int stop) throws AmqpValues.Broken {
        AmqpValues.expect(start < stop && data[start] == 0); // most records that are no messages end here
        kind = 0;
        bodyCount = 0;
        Arrays.fill(sections, 0);
        values.begin(data, start, stop);
        while (values.at < stop) {
            AmqpValues.expect(values.next() == 0);
            int descriptor = values.at;
            values.value();
            int section = sectionOf(descriptor);
            int at = values.at;
            values.value();
            note(section, at);
        }
    }

    private int sectionOf(int descriptor) throws AmqpValues.Broken {
        int code = codeAt(descriptor);
        long section;
        if (code == 0x53) { // nearly always
            section = data[descriptor + 1] & 0xff;
        } else {
            json.begin(data, descriptor);
            section = isSymbol(code) ? SYMBOLS.getOrDefault(json.text(), 0) : json.integer();
        }
        AmqpValues.expect(section >= HEADER && section <= FOOTER);
        return (int) section;
    }

    private void note(int section, int at) throws AmqpValues.Broken {
        int code = codeAt(at);
        boolean isList = code == 0x45 || code == 0xc0 || code == 0xd0 || code >= ARRAY;
        if (section == DATA || section == SEQUENCE || section == VALUE) {
            AmqpValues.expect(kind == 0 || kind == section && kind != VALUE);
            AmqpValues.expect(section == VALUE || (section == DATA ? isBinary(code) : isList));
            kind = section;
            if (bodyCount == bodies.length) {
                bodies = Arrays.copyOf(bodies, 2 * bodyCount);
            }
            bodies[bodyCount++] = at;
            return;
        }
        AmqpValues.expect(sections[section] == 0);
        sections[section] = at;
        if (section == HEADER || section == PROPERTIES) {
            AmqpValues.expect(isList && count(at) <= (section == HEADER ? HEADER_FIELDS : PROPERTY_FIELDS));
        } else {
            AmqpValues.expect(code == 0xc1 || code == 0xd1);
        }
    }

    private Place asBytes(int at) {
        if (isText(codeAt(at))) {
            return content(at);
        }
        json.begin(data, at);
        return Place.of(json.asBytes());
    }

    private int codeAt(int at) {
        return data[at] & 0xff;
    }

    private static boolean isBinary(int code) {
        return code == 0xa0 || code == 0xb0;
    }

    private static boolean isSymbol(int code) {
        return code == 0xa3 || code == 0xb3;
    }

    private static boolean isText(int code) {
        return code == 0xa1 || code == 0xb1 || isSymbol(code);
    }

    private static boolean isWide(int code) {
        return (code & 0x10) != 0;
    }

    /** Return the place of a checked text, symbol or binary. */
    private Place content(int at) {
        return isWide(codeAt(at)) ? new Place(data, at + 5, Chunk.intAt(data, at + 1))
                : new Place(data, at + 2, codeAt(at + 1));
    }

    /** Return the number of elements of a checked list, map or array. */
    private long count(int at) {
        if (codeAt(at) == 0x45) {
            return 0;
        }
        return isWide(codeAt(at)) ? Chunk.intAt(data, at + 5) & 0xffffffffL : codeAt(at + 2);
    }

    /** Return the position behind the count of a checked list, map or array. */
    private int first(int at) {
        return isWide(codeAt(at)) ? at + 9 : at + 3;
    }
}
