package ledgeroffload.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.zip.CRC32C;

/**
 * The tail of a fragment that is not encrypted, checked: where its chunks are, and their checksums.
 *
 * <p>docs/format.md has the layout. The checks are those of the Python reader, in its order. Invariants: no
 * array is larger than the tail, whose size the plan bounds, or than a section of 64 MiB; chunks or blocks fill the
 * object up to the first section; chunks follow each other in plain bytes and in offsets.
 */
final class Tail {
    static final int HEADER_SIZE = 16;
    static final int TRAILER_SIZE = 180;
    private static final int SECTION_SIZE = 48;
    /** The size of a record of an index of version 1. */
    private static final int OLDER_RECORD_SIZE = 40;
    private static final int CHUNKS_MAX = 1 << 20;
    private static final int PLAIN_SIZE_MAX = 64 << 20;
    private static final byte[] MAGIC = "OLFT".getBytes(StandardCharsets.US_ASCII);
    private static final HexFormat HEX = HexFormat.of();

    final int count;
    /** For each chunk: its first offset, its time, its first byte, its size and its records. */
    final long[] offsets;
    final long[] times;
    final long[] positions;
    final long[] sizes;
    final long[] records;
    final byte[] types;
    final int[] checksums;
    /** The blocks of the chunks; null if the chunks are stored plain. */
    final Blocks blocks;

    private record Section(long position, long size, long plainSize, int version, int codec, int encrypted,
            int checksum) {
    }

    /** Decode the tail of a fragment, and check that it is that of the entry. */
    Tail(byte[] raw, TaskPlan.Part part, TaskPlan.Fragment entry) {
        String where = entry.key();
        long begin = entry.storedSize() - raw.length;
        if (raw.length != entry.tailSize() || raw.length < TRAILER_SIZE) {
            throw new Damage("object size", where, 0, entry.storedSize(), begin + raw.length);
        }
        int trailerStart = raw.length - TRAILER_SIZE;
        long trailerAt = begin + trailerStart;
        ByteBuffer trailer = ByteBuffer.wrap(raw, trailerStart, TRAILER_SIZE).slice();
        byte[] magic = bytes(trailer, 0, 4);
        if (!Arrays.equals(magic, MAGIC)) {
            throw new Damage("trailer magic", where, trailerAt, HEX.formatHex(MAGIC), HEX.formatHex(magic));
        }
        int sum = crc32c(raw, trailerStart, TRAILER_SIZE - 4);
        expect("trailer checksum", where, trailerAt, unsigned(trailer.getInt(176)), unsigned(sum));
        int version = trailer.getShort(4) & 0xffff;
        if (version != 1 && version != 2) {
            throw new UnsupportedOperationException(where + ": trailer has format version " + version
                    + ", and this program reads 2; upgrade the program");
        }
        if (version == 1) {
            trailer = asToday(trailer, where, trailerAt);
        }
        int codec = trailer.get(6) & 0xff;
        int flags = trailer.get(7) & 0xff;
        long firstOffset = trailer.getLong(96);
        long nextOffset = trailer.getLong(104);
        long messages = trailer.getLong(112);
        long dataSize = trailer.getLong(136);
        long size = trailer.getLong(144);
        long tailStart = trailer.getLong(152);
        long chunkCount = trailer.getInt(160) & 0xffffffffL;
        long sectionCount = trailer.getInt(164) & 0xffffffffL;
        if (flags > 3) {
            throw new Damage("trailer flags", where, trailerAt, 1, flags >> 1);
        }
        // Numbers of 64 bits without a sign, from a trailer that may be forged.
        boolean isRange = Long.compareUnsigned(firstOffset, nextOffset) < 0;
        long all = isRange ? nextOffset - firstOffset : 0;
        if (chunkCount == 0 || chunkCount > CHUNKS_MAX || Long.compareUnsigned(chunkCount, all) > 0
                || Long.compareUnsigned(messages, all) > 0) {
            throw new Damage("trailer counts", where, trailerAt,
                    "1 <= chunks <= records, and at most " + CHUNKS_MAX + " chunks",
                    chunkCount + " chunks, " + Long.toUnsignedString(all) + " records, "
                            + Long.toUnsignedString(messages) + " messages");
        }
        long behind = TRAILER_SIZE + sectionCount * SECTION_SIZE;
        if (Long.compareUnsigned(tailStart, HEADER_SIZE) < 0 || Long.compareUnsigned(size, behind) < 0
                || Long.compareUnsigned(tailStart, size - behind) > 0) {
            throw new Damage("trailer sizes", where, trailerAt, "a tail within the object",
                    "a tail from " + Long.toUnsignedString(tailStart) + " in an object of "
                            + Long.toUnsignedString(size));
        }
        if (Long.compareUnsigned(size - tailStart, 0xffffffffL) > 0) {
            throw new Damage("tail size", where, trailerAt, "at most " + 0xffffffffL,
                    Long.toUnsignedString(size - tailStart));
        }
        expect("object size", where, 0, size, entry.storedSize());
        if (begin > tailStart) {
            throw new Damage("tail", where, 0, "from " + tailStart, "from " + begin);
        }
        int at = (int) (tailStart - begin);
        expect("tail checksum", where, tailStart, unsigned(trailer.getInt(172)),
                unsigned(crc32c(raw, at, trailerStart - at)));

        int directory = trailerStart - (int) sectionCount * SECTION_SIZE;
        if (directory < at) {
            throw new Damage("trailer sizes", where, trailerAt, "a directory within the tail", sectionCount);
        }
        count = (int) chunkCount;
        offsets = new long[count];
        times = new long[count];
        positions = new long[count];
        sizes = new long[count];
        records = new long[count];
        types = new byte[count];
        checksums = new int[count];
        ByteBuffer description;
        long firstSection = tailStart;
        if (version == 1) {
            description = readOlderTable(ByteBuffer.wrap(raw, at, trailerStart - at).slice(), where, tailStart);
            blocks = null;
        } else {
            Map<String, Section> sections = sectionsOf(raw, directory, (int) sectionCount, where, begin);
            if (sections.values().stream().noneMatch(each -> each.position == tailStart)) {
                throw new Damage("tail", where, tailStart, "a section at its start", "none");
            }
            ByteBuffer index = part(raw, sections, "index", 17 * count, where, begin, at, directory);
            ByteBuffer sums = part(raw, sections, "checksums", 4 * count, where, begin, at, directory);
            readTable(index, sums, firstOffset);
            description = part(raw, sections, "description", -1, where, begin, at, directory);
            blocks = codec == 0 ? null
                    : new Blocks(part(raw, sections, "blocks", -1, where, begin, at, directory), sizes, codec,
                            where, tailStart);
            firstSection = sections.values().stream().mapToLong(Section::position).min().orElse(tailStart);
        }
        checkTable(trailer, where, tailStart, messages, dataSize, firstOffset, nextOffset);
        expect("end of chunks", where, tailStart, firstSection,
                blocks == null ? HEADER_SIZE + dataSize : blocks.positions[blocks.count]);
        checkDescription(description, trailer, where, tailStart);
        checkEntry(trailer, part, entry, where, tailStart, codec, flags);
    }

    /** Return a trailer of version 1 with its fields at the places of today's. */
    private static ByteBuffer asToday(ByteBuffer old, String where, long at) {
        if (old.get(6) != 0 || old.getLong(8) != 0 || old.getLong(16) != 0) {
            throw new UnsupportedOperationException(
                    where + ": its chunks are compressed or encrypted; upgrade the program");
        }
        int copied = old.get(7) & 0xff;
        if (copied > 1) {
            throw new Damage("trailer copied", where, at, 1, copied);
        }
        long start = old.getLong(152);
        int chunks = old.getInt(160);
        ByteBuffer found = ByteBuffer.allocate(TRAILER_SIZE);
        found.put(7, (byte) copied);
        found.put(8, bytes(old, 24, 120)); // from the digest to the messages
        found.putLong(120, old.getLong(136)).putLong(128, old.getLong(144));
        found.putLong(136, Long.compareUnsigned(start, HEADER_SIZE) < 0 ? 0 : start - HEADER_SIZE);
        found.putLong(144, start + (chunks & 0xffffffffL) * OLDER_RECORD_SIZE
                + (old.getInt(164) & 0xffffffffL) + TRAILER_SIZE);
        found.putLong(152, start).putInt(160, chunks);
        found.putInt(168, old.getInt(168)).putInt(172, old.getInt(172));
        return found;
    }

    /** Read the index of version 1: a record for each chunk. Return the description behind it. */
    private ByteBuffer readOlderTable(ByteBuffer raw, String where, long at) {
        int reserved = count;
        int apartBytes = count;
        int apartOffsets = count;
        for (int row = 0; row < count; row++) {
            int place = row * OLDER_RECORD_SIZE;
            offsets[row] = raw.getLong(place);
            times[row] = raw.getLong(place + 8);
            positions[row] = raw.getLong(place + 16);
            sizes[row] = raw.getInt(place + 24) & 0xffffffffL;
            records[row] = raw.getInt(place + 28) & 0xffffffffL;
            types[row] = raw.get(place + 32);
            checksums[row] = raw.getInt(place + 36);
            if ((raw.getInt(place + 32) & 0xffffff) != 0) {
                reserved = Math.min(reserved, row);
            }
            if (row > 0 && positions[row] != positions[row - 1] + sizes[row - 1]) {
                apartBytes = Math.min(apartBytes, row);
            }
            if (row > 0 && offsets[row] != offsets[row - 1] + records[row - 1]) {
                apartOffsets = Math.min(apartOffsets, row);
            }
        }
        backToBack("index reserved bytes", where, at, reserved);
        backToBack("index position", where, at, apartBytes);
        backToBack("index offset", where, at, apartOffsets);
        int end = count * OLDER_RECORD_SIZE;
        return raw.slice(end, raw.limit() - end);
    }

    private void backToBack(String what, String where, long at, int row) {
        if (row < count) {
            throw new Damage(what, where, at + (long) row * OLDER_RECORD_SIZE, "chunks back to back",
                    "record " + row);
        }
    }

    private static Map<String, Section> sectionsOf(byte[] raw, int directory, int count, String where,
            long begin) {
        Map<String, Section> found = new HashMap<>();
        long directoryAt = begin + directory;
        Section before = null;
        String nameBefore = "";
        for (int row = 0; row < count; row++) {
            ByteBuffer fields = ByteBuffer.wrap(raw, directory + row * SECTION_SIZE, SECTION_SIZE).slice();
            String name = nameOf(bytes(fields, 0, 16));
            if (name.isEmpty() || found.containsKey(name)) {
                throw new Damage("section name", where, directoryAt, "a new name",
                        HEX.formatHex(bytes(fields, 0, 16)));
            }
            Section section = new Section(fields.getLong(20), fields.getLong(28), fields.getLong(36),
                    fields.getShort(16) & 0xffff, fields.get(18) & 0xff, fields.get(19) & 0xff,
                    fields.getInt(44));
            if (section.position < 0 || section.size < 0 || section.position > Long.MAX_VALUE - section.size) {
                throw new Damage("place of section '" + name + "'", where, directoryAt, "within the object",
                        Long.toUnsignedString(section.position));
            }
            if (before != null) {
                expect("end of section '" + nameBefore + "'", where, directoryAt, section.position,
                        before.position + before.size);
            }
            found.put(name, section);
            before = section;
            nameBefore = name;
        }
        if (before != null) {
            expect("end of section '" + nameBefore + "'", where, directoryAt, directoryAt,
                    before.position + before.size);
        }
        return found;
    }

    private static String nameOf(byte[] raw) {
        int size = 0;
        while (size < raw.length && (raw[size] >= 'a' && raw[size] <= 'z'
                || raw[size] >= '0' && raw[size] <= '9' || raw[size] == '-')) {
            size++;
        }
        for (int rest = size; rest < raw.length; rest++) {
            if (raw[rest] != 0) {
                return "";
            }
        }
        return new String(raw, 0, size, StandardCharsets.US_ASCII);
    }

    /** Return a section of the tail. {@code size} is its size, or -1 if any size is right. */
    private static ByteBuffer part(byte[] raw, Map<String, Section> sections, String name, int size,
            String where, long begin, int from, int to) {
        Section section = sections.get(name);
        if (section == null) {
            throw new Damage("section '" + name + "'", where, begin + from, "in the directory", "none");
        }
        String what = "section '" + name + "'";
        long at = section.position;
        if (at < begin + from || at + section.size > begin + to) {
            throw new Damage("place of " + what, where, at, "from " + (begin + from), at);
        }
        int start = (int) (at - begin);
        int length = (int) section.size;
        int most = size >= 0 ? size : PLAIN_SIZE_MAX;
        if (Long.compareUnsigned(section.plainSize, most) > 0) {
            throw new Damage("size of " + what, where, at, "<= " + most,
                    Long.toUnsignedString(section.plainSize));
        }
        int sum = crc32c(raw, start, length);
        if (sum != section.checksum) {
            throw new Damage("checksum of " + what, where, at, unsigned(section.checksum), unsigned(sum));
        }
        if (section.version != 1 || section.encrypted != 0) {
            throw new UnsupportedOperationException(where + ": " + what + " has version " + section.version
                    + ", encryption " + section.encrypted + "; upgrade the program");
        }
        if (section.codec == 0) {
            expect("plain size", where, at, section.plainSize, section.size);
        }
        Compressed.possible(length, section.codec, section.plainSize, where, at);
        byte[] plain = new byte[(int) section.plainSize];
        Compressed.decode(raw, start, length, section.codec, plain, 0, plain.length, where, at);
        if (size >= 0) {
            expect("size of " + what, where, at, size, plain.length);
        }
        return ByteBuffer.wrap(plain);
    }

    private void readTable(ByteBuffer index, ByteBuffer sums, long firstOffset) {
        long time = 0;
        long offset = firstOffset;
        long position = HEADER_SIZE;
        for (int row = 0; row < count; row++) {
            time += index.getLong(8 * row);
            times[row] = time;
            sizes[row] = index.getInt(8 * count + 4 * row) & 0xffffffffL;
            records[row] = index.getInt(12 * count + 4 * row) & 0xffffffffL;
            types[row] = index.get(16 * count + row);
            checksums[row] = sums.getInt(4 * row);
            offsets[row] = offset;
            positions[row] = position;
            // At most 2^20 chunks of 2^32: neither sum wraps.
            offset += records[row];
            position += sizes[row];
        }
    }

    private void checkTable(ByteBuffer trailer, String where, long at, long messages, long dataSize,
            long firstOffset, long nextOffset) {
        long allRecords = 0;
        long allMessages = 0;
        long allBytes = 0;
        long least = Long.MAX_VALUE;
        long greatest = Long.MIN_VALUE;
        int wrongType = count;
        int wrongSize = count;
        int wrongRecords = count;
        for (int row = count - 1; row >= 0; row--) {
            wrongType = (types[row] & 0xff) > 2 ? row : wrongType;
            wrongSize = sizes[row] < Chunk.HEADER_SIZE ? row : wrongSize;
            wrongRecords = records[row] == 0 ? row : wrongRecords;
            allRecords += records[row];
            allMessages += types[row] == 0 ? records[row] : 0;
            allBytes += sizes[row];
            least = Math.min(least, times[row]);
            greatest = Math.max(greatest, times[row]);
        }
        possible("chunk type", where, at, wrongType);
        possible("chunk size", where, at, wrongSize);
        possible("index records", where, at, wrongRecords);
        expect("first chunk", where, at, firstOffset + ", " + HEADER_SIZE, offsets[0] + ", " + positions[0]);
        expect("next offset", where, at, nextOffset, firstOffset + allRecords);
        expect("data size", where, at, dataSize, allBytes);
        expect("messages", where, at, messages, allMessages);
        expect("timestamps", where, at, trailer.getLong(120) + ", " + trailer.getLong(128),
                least + ", " + greatest);
    }

    private void possible(String what, String where, long at, int row) {
        if (row < count) {
            throw new Damage(what, where, at, "a possible value", "chunk " + row);
        }
    }

    private static void checkDescription(ByteBuffer description, ByteBuffer trailer, String where, long at) {
        long size = description.limit();
        long name = size < 8 ? 0 : description.getInt(0) & 0xffffffffL;
        long metadata = size < 8 ? 0 : description.getInt(4) & 0xffffffffL;
        expect("description size", where, at, size, 8 + name + metadata);
        byte[] digest = TaskPlan.digestOf(new String(bytes(description, 8, (int) name), StandardCharsets.UTF_8));
        expect("stream digest", where, at, HEX.formatHex(bytes(trailer, 8, 32)), HEX.formatHex(digest));
    }

    private static void checkEntry(ByteBuffer trailer, TaskPlan.Part part, TaskPlan.Fragment entry,
            String where, long at, int codec, int flags) {
        expect("stream", where, at, HEX.formatHex(part.digest()), HEX.formatHex(bytes(trailer, 8, 32)));
        expect("incarnation", where, at, HEX.formatHex(part.incarnation()),
                HEX.formatHex(bytes(trailer, 40, 16)));
        expect("attempt", where, at, HEX.formatHex(entry.attempt()), HEX.formatHex(bytes(trailer, 56, 16)));
        expect("ledger", where, at, entry.ledger(), trailer.getLong(72));
        expect("first offset", where, at, entry.firstOffset(), trailer.getLong(96));
        expect("next offset", where, at, entry.nextOffset(), trailer.getLong(104));
        expect("messages", where, at, entry.messages(), trailer.getLong(112));
        expect("copied", where, at, entry.copied(), flags & 1);
        expect("first timestamp", where, at, entry.firstTime(), trailer.getLong(120));
        expect("last timestamp", where, at, entry.lastTime(), trailer.getLong(128));
        expect("data size", where, at, entry.dataSize(), trailer.getLong(136));
        expect("codec", where, at, entry.codec(), codec);
        expect("encryption", where, at, 0, flags >> 1);
    }

    static void expect(String what, String where, long at, Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new Damage(what, where, at, expected, found);
        }
    }

    private static byte[] bytes(ByteBuffer from, int start, int size) {
        byte[] found = new byte[size];
        from.get(start, found);
        return found;
    }

    private static long unsigned(int value) {
        return value & 0xffffffffL;
    }

    private static int crc32c(byte[] data, int start, int size) {
        CRC32C sum = new CRC32C();
        sum.update(data, start, size);
        return (int) sum.getValue();
    }
}
