package ledgeroffload.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

/**
 * The plan of a task: runs of fragments, with the numbers of their entries in the manifest.
 *
 * <p>The Python side has checked these numbers: all are below 2^63, sizes are those of the manifest, and no tail is
 * larger than 64 MiB.
 */
public final class TaskPlan {
    /** The requests of a part's fragments, which the driver signed, and the limits of each. */
    public record Signed(long seconds, long untilMillis, long stallMillis, long patienceMillis) {
    }

    /** One fragment: its file or its URL, which is a secret, its key, and its entry. */
    public record Fragment(String place, String key, byte[] attempt, long firstOffset, long records, long messages,
            long firstTime, long lastTime, long dataSize, long storedSize, int tailSize, long ledger,
            int copied, int codec) {
        long nextOffset() {
            return firstOffset + records;
        }

        /** Return the key: that of a record would have the URL. */
        @Override
        public String toString() {
            return key;
        }
    }

    /**
     * The chunks that begin in [first, until) and may have a record within the bounds. {@code signed} is null for
     * files. {@code isAmqp} if the columns body and key are those of AMQP messages.
     */
    public record Part(String name, int number, String stream, byte[] digest, byte[] incarnation, long first,
            long until, long lowOffset, long highOffset, long firstTime, long lastTime,
            Signed signed, boolean isAmqp, List<Fragment> fragments) {
    }

    private TaskPlan() {
    }

    public static List<Part> of(String text) {
        try {
            List<Part> parts = new ArrayList<>();
            for (JsonNode part : new ObjectMapper().readTree(text).get("parts")) {
                parts.add(partOf(part));
            }
            return parts;
        } catch (IOException exc) { // whose text may have a part of the plan, and so a URL
            throw new IllegalStateException("the plan of a task is not JSON");
        }
    }

    private static Part partOf(JsonNode part) {
        List<Fragment> fragments = new ArrayList<>();
        for (JsonNode each : part.get("fragments")) {
            fragments.add(new Fragment(text(each, "place"), text(each, "key"), bytes(each, "attempt"),
                    number(each, "first_offset"), number(each, "records"), number(each, "messages"),
                    number(each, "first_timestamp_ms"), number(each, "last_timestamp_ms"),
                    number(each, "data_size_bytes"), number(each, "stored_size_bytes"),
                    Math.toIntExact(number(each, "tail_size_bytes")), number(each, "ledger_id"),
                    (int) number(each, "copied"), (int) number(each, "codec")));
        }
        return new Part(text(part, "name"), (int) number(part, "number"), text(part, "stream"),
                digestOf(text(part, "stream")), bytes(part, "incarnation"), number(part, "first"),
                number(part, "until"), number(part, "low_offset"), number(part, "high_offset"),
                number(part, "first_timestamp_ms"), number(part, "last_timestamp_ms"), signedOf(part.get("signed")),
                text(part, "decoder").equals(PythonPlans.AMQP), fragments);
    }

    private static Signed signedOf(JsonNode signed) {
        return signed.isNull() ? null : new Signed(number(signed, "seconds"), number(signed, "until_ms"),
                number(signed, "stall_ms"), number(signed, "patience_ms"));
    }

    /** Return the bytes by which a trailer names its stream. */
    static byte[] digestOf(String stream) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(stream.getBytes(StandardCharsets.UTF_8));
        } catch (NoSuchAlgorithmException exc) {
            throw new IllegalStateException(exc); // every Java has it
        }
    }

    private static String text(JsonNode node, String name) {
        return node.get(name).textValue();
    }

    private static long number(JsonNode node, String name) {
        JsonNode found = node.get(name);
        if (!found.canConvertToLong()) {
            throw new IllegalStateException("a number of the plan is too large: " + name);
        }
        return found.longValue();
    }

    private static byte[] bytes(JsonNode node, String name) {
        return HexFormat.of().parseHex(text(node, name));
    }
}
