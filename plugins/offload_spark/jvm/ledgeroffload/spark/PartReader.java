package ledgeroffload.spark;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The reader of one task: it reads the wanted chunks window by window, checks them, and yields their rows.
 *
 * <p>Invariants: a batch holds only rows of chunks whose header and checksum were checked; damage is thrown
 * behind all rows before it; memory is bounded by one tail, one window of {@link #WINDOW_SIZE} or one larger
 * chunk, one sub-batch, and what of a bucket arrives ahead: two replies ({@link HttpReply}), that of this fragment and the
 * first of the next one. If no value is wanted, only tails are read.
 */
public final class PartReader implements PartitionReader<ColumnarBatch> {
    private static final int WINDOW_SIZE = 8 << 20;
    private static final int CHUNK_SIZE_MAX = 1 << 30;
    /** A batch ends with the chunk that brings it to so many rows. A chunk has at most 65,535 entries. */
    private static final int BATCH_ROWS = 32_768;

    private record Next(TaskPlan.Part part, TaskPlan.Fragment fragment) {
    }

    private final ArrayDeque<Next> following = new ArrayDeque<>();
    private final boolean readsValues;
    /** How many rows may still be needed. */
    private long left;
    private final Rows rows = new Rows();
    private final BatchColumns columns;

    private TaskPlan.Part part;
    private TaskPlan.Fragment fragment;
    private ObjectBytes object;
    /** The next fragment in a bucket, whose first request is under way; null if there is none. */
    private ObjectBytes ahead;
    private Tail tail;
    /** The next wanted chunk; that of the tail's end if there is none. */
    private int row;
    /** Behind the last chunk of which rows are needed: the tail's end, unless {@link #left} ends before. */
    private int rowStop;
    /** For a read of tails alone: the records of the chunk {@link #row} that were delivered. */
    private long within;
    /** The plain chunks from byte {@link #windowStart} on, as if nothing were compressed. */
    private byte[] window = new byte[0];
    private byte[] stored = new byte[0];
    private long windowStart;
    private int windowFirst;
    private int windowStop;
    private boolean windowIsSecond;
    private SubBatches subBatches;
    private Damage damage;

    /** Make a reader that may end when it has delivered {@code limit} rows: nobody needs more. */
    public PartReader(List<TaskPlan.Part> parts, StructType schema, long limit) {
        parts.forEach(part -> part.fragments().forEach(each -> following.add(new Next(part, each))));
        this.left = limit;
        Set<String> names = Set.of(schema.fieldNames());
        readsValues = names.contains("value") || names.contains("key") || names.contains("body");
        columns = new BatchColumns(schema, rows);
    }

    @Override
    public boolean next() throws IOException {
        if (left <= 0) {
            return false;
        }
        if (damage != null) {
            throw damage;
        }
        rows.count = 0;
        try {
            while (rows.count == 0) {
                if (!advance()) {
                    return false;
                }
            }
        } catch (Damage found) {
            Damage named = named(found);
            if (rows.count == 0) {
                throw named;
            }
            damage = named; // the rows before it come first
        }
        left -= rows.count;
        return true;
    }

    /** Return the damage with the offsets that cannot be read: of the chunk, or of the whole fragment. */
    private Damage named(Damage found) {
        if (tail != null) {
            return found.of(part, tail.offsets[row], tail.offsets[row] + tail.records[row]);
        }
        return found.of(part, Math.max(part.first(), fragment.firstOffset()),
                Math.min(part.until(), fragment.nextOffset()));
    }

    @Override
    public ColumnarBatch get() {
        return columns.batch(part, fragment);
    }

    @Override
    public void close() throws IOException {
        if (object != null) {
            object.close();
            object = null;
        }
        if (ahead != null) {
            ahead.close();
            ahead = null;
        }
    }

    /** Take one step: to the next fragment, or to more rows. Return false at the end. */
    private boolean advance() throws IOException {
        if (subBatches != null) {
            if (!subBatches.next(rows)) {
                subBatches = null;
                row = wantedFrom(row + 1);
            }
        } else if (tail == null || row == tail.count) {
            return openNext();
        } else if (!readsValues) {
            fillFromTable();
        } else {
            if (row >= windowStop) {
                loadWindow();
            }
            fillFromWindow();
        }
        return true;
    }

    private boolean openNext() throws IOException {
        if (object != null) {
            object.close();
            object = null;
        }
        Next next = following.poll();
        if (next == null) {
            return false;
        }
        part = next.part();
        fragment = next.fragment();
        tail = null;
        windowStop = 0;
        // Before anything is allocated: the object is as large as the plan says.
        object = ahead == null ? begun(next) : ahead;
        ahead = null;
        Next after = following.peek();
        if (after != null && after.part().signed() != null && fragment.messages() < left) {
            ahead = begun(after);
        }
        byte[] raw = new byte[fragment.tailSize()];
        long begin = fragment.storedSize() - raw.length;
        object.read(raw, raw.length, begin, fragment.storedSize());
        try {
            tail = new Tail(raw, part, fragment);
        } catch (Damage first) { // perhaps of the transfer: a second read decides
            object.forget();
            object.read(raw, raw.length, begin, fragment.storedSize());
            tail = new Tail(raw, part, fragment);
        }
        rowStop = tail.count;
        long needed = left;
        for (int at = 0; at < rowStop; at++) {
            needed -= isWanted(at) ? Math.min(tail.offsets[at] + tail.records[at], part.highOffset())
                    - Math.max(tail.offsets[at], part.lowOffset()) : 0;
            if (needed <= 0) {
                rowStop = at + 1;
            }
        }
        row = wantedFrom(0);
        within = 0;
        return true;
    }

    private ObjectBytes begun(Next next) throws IOException {
        ObjectBytes made = ObjectBytes.of(next.part(), next.fragment(), readsValues);
        made.begin();
        return made;
    }

    private boolean isWanted(int at) {
        long offset = tail.offsets[at];
        return at < rowStop && tail.types[at] == 0 && offset >= part.first() && offset < part.until()
                && offset + tail.records[at] > part.lowOffset() && offset < part.highOffset()
                && tail.times[at] >= part.firstTime() && tail.times[at] <= part.lastTime();
    }

    private int wantedFrom(int at) {
        while (at < tail.count && !isWanted(at)) {
            at++;
        }
        return at;
    }

    private void fillFromTable() {
        while (row < tail.count && rows.count < BATCH_ROWS) {
            long offset = tail.offsets[row];
            long first = Math.max(within, part.lowOffset() - offset);
            long stop = Math.min(tail.records[row], part.highOffset() - offset);
            // A header may claim billions of records.
            int more = (int) Math.min(stop - first, BATCH_ROWS - rows.count);
            if (more > 0) {
                rows.reserve(more);
                rows.number(offset + first, tail.times[row], more);
            }
            if (first + more >= stop) {
                row = wantedFrom(row + 1);
                within = 0;
            } else {
                within = first + more;
            }
        }
    }

    /** Read the next wanted chunks that follow each other in the bytes. */
    private void loadWindow() throws IOException {
        long size = tail.sizes[row];
        if (size > CHUNK_SIZE_MAX) {
            throw new UnsupportedOperationException(fragment.key() + ": a chunk of " + size
                    + " bytes, which the Java reader does not read; set " + JavaReader.SETTING + "=python");
        }
        int stop = row + 1;
        while (stop < tail.count && isWanted(stop) && size + tail.sizes[stop] <= WINDOW_SIZE) {
            size += tail.sizes[stop++];
        }
        windowFirst = row;
        windowStop = stop;
        windowIsSecond = false;
        fetchWindow();
    }

    private void fetchWindow() throws IOException {
        int last = windowStop - 1;
        long end = tail.positions[last] + tail.sizes[last];
        windowStart = tail.positions[windowFirst];
        if (tail.blocks == null) {
            window = roomFor(window, end - windowStart);
            object.read(window, (int) (end - windowStart), windowStart, runStop());
            return;
        }
        fetchBlocks(tail.blocks);
    }

    /** Read the blocks that hold the window's chunks. A damaged block ends the window before its first chunk. */
    private void fetchBlocks(Blocks blocks) throws IOException {
        int begin = blocks.holding(windowFirst);
        int stop = blocks.holding(windowStop - 1) + 1;
        int behind = blocks.firsts[stop] - 1;
        windowStart = tail.positions[blocks.firsts[begin]];
        long from = blocks.positions[begin];
        long size = blocks.positions[stop] - from;
        long plain = tail.positions[behind] + tail.sizes[behind] - windowStart;
        if (Math.max(size, plain) > 2L * CHUNK_SIZE_MAX - 64) {
            throw new UnsupportedOperationException(fragment.key() + ": a block of " + plain
                    + " bytes, which the Java reader does not read; set " + JavaReader.SETTING + "=python");
        }
        stored = roomFor(stored, size);
        object.read(stored, (int) size, from, runStop());
        for (int number = begin; number < stop; number++) {
            int first = blocks.firsts[number];
            int next = blocks.firsts[number + 1] - 1;
            int into = (int) (tail.positions[first] - windowStart);
            int own = (int) (tail.positions[next] + tail.sizes[next] - tail.positions[first]);
            int start = (int) (blocks.positions[number] - from);
            try {
                blocks.check(number, stored, start, fragment.key());
                int wide = (int) (blocks.positions[number + 1] - blocks.positions[number]);
                blocks.possible(number, wide, own, fragment.key());
                window = grown(window, into, into + own);
                blocks.decode(number, stored, start, window, into, own, fragment.key());
            } catch (Damage damage) {
                if (number == begin) {
                    if (windowIsSecond) {
                        throw damage;
                    }
                    windowIsSecond = true;
                    object.forget();
                    fetchBlocks(blocks);
                    return;
                }
                windowStop = first;
                return;
            }
        }
    }

    /** Return the end of the bytes that this task will read in order: of all wanted chunks without a large gap. */
    private long runStop() {
        int last = windowStop - 1;
        for (int next = windowStop; next < tail.count; next++) {
            if (isWanted(next)) {
                if (tail.positions[next] - tail.positions[last] - tail.sizes[last] > HttpBytes.GAP_SIZE) {
                    break;
                }
                last = next;
            }
        }
        return tail.blocks == null
                ? tail.positions[last] + tail.sizes[last]
                : tail.blocks.positions[tail.blocks.holding(last) + 1];
    }

    private byte[] roomFor(byte[] old, long size) {
        return old.length >= size ? old : new byte[(int) Math.max(size, Math.min(WINDOW_SIZE, fragment.dataSize()))];
    }

    /** Return an array of {@code size} bytes or more that keeps the first {@code kept} bytes. */
    private static byte[] grown(byte[] old, int kept, int size) {
        if (old.length >= size) {
            return old;
        }
        byte[] found = new byte[(int) Math.max(size, Math.min(2L * old.length, WINDOW_SIZE))];
        System.arraycopy(old, 0, found, 0, kept);
        return found;
    }

    private void fillFromWindow() throws IOException {
        while (row < windowStop && rows.count < BATCH_ROWS) {
            int start = checkedStart();
            if (start < 0) {
                return;
            }
            rows.data = window;
            long offset = tail.offsets[row];
            int count = Chunk.entries(window, start);
            int dataStart = Chunk.dataStart(window, start);
            int dataStop = Chunk.dataStop(window, start);
            // Fewer entries than records mean that there are sub-batches.
            if (count == tail.records[row]) {
                rows.reserve(count);
                if (Chunk.walk(window, dataStart, dataStop, count, rows.starts, rows.sizes, rows.count)) {
                    int first = (int) Math.max(0, part.lowOffset() - offset);
                    int kept = (int) Math.min(count, part.highOffset() - offset) - first;
                    if (first > 0) {
                        rows.drop(rows.count, first, kept);
                    }
                    rows.number(offset + first, tail.times[row], kept);
                    row = wantedFrom(row + 1);
                    continue;
                }
            }
            if (rows.count == 0) {
                subBatches = new SubBatches(window, start, tail, row, part, fragment.key());
            }
            return; // rows of a sub-batch have bytes of their own, so they come in a batch of their own
        }
    }

    /**
     * Check the next wanted chunk, and return its place in the window. Return -1 if it is damaged and there are
     * rows before it: they come first, and the next call reads it a second time, because the damage may be of
     * the transfer.
     */
    private int checkedStart() throws IOException {
        int start = (int) (tail.positions[row] - windowStart);
        try {
            Chunk.check(window, start, tail, row, fragment.key());
        } catch (Damage first) {
            if (rows.count > 0) {
                return -1;
            }
            if (!windowIsSecond) {
                windowIsSecond = true;
                windowFirst = row;
                object.forget();
                fetchWindow();
                return checkedStart();
            }
            // In a compressed object, damage is located at the block that holds the chunk.
            throw tail.blocks == null ? first : first.at(tail.blocks.positions[tail.blocks.holding(row)]);
        }
        return start;
    }

    /** The rows of one chunk that has sub-batches, or whose entries are damaged. */
    private static final class SubBatches {
        private final byte[] window;
        private final Tail tail;
        private final int row;
        private final TaskPlan.Part part;
        private final String where;
        private final int origin;
        private final int stop;
        private int at;
        private long done;

        SubBatches(byte[] window, int start, Tail tail, int row, TaskPlan.Part part, String where) {
            this.window = window;
            this.tail = tail;
            this.row = row;
            this.part = part;
            this.where = where;
            this.origin = start;
            this.at = Chunk.dataStart(window, start);
            this.stop = Chunk.dataStop(window, start);
            checkAll(Chunk.entries(window, start), Chunk.records(window, start));
        }

        private long position(int index) {
            return tail.positions[row] + index - origin;
        }

        /** Check all lengths and numbers of the chunk, before any entry is opened. */
        private void checkAll(int entries, long wanted) {
            int next = at;
            long records = 0;
            long size = 0;
            for (int entry = 0; entry < entries; entry++) {
                boolean isSubBatch = next < stop && window[next] < 0;
                long body = next + (isSubBatch ? Chunk.SUB_BATCH_HEADER_SIZE : 4L);
                if (body > stop) {
                    throw new Damage("chunk entries", where, position(next), entries + " entries",
                            stop - next + " bytes left for one");
                }
                long length = Chunk.intAt(window, next + (isSubBatch ? 7 : 0)) & 0xffffffffL;
                if (length > stop - body) {
                    throw new Damage("entry size", where, position(next), "at most " + (stop - body), length);
                }
                int count = isSubBatch ? Chunk.shortAt(window, next + 1) : 1;
                if (isSubBatch) {
                    if ((window[next] & 0x0f) != 0 || count == 0) {
                        throw new Damage("sub-batch header", where, position(next),
                                "four zero bits, and a record or more",
                                String.format("kind 0x%02x, %d records", window[next], count));
                    }
                    size += Chunk.intAt(window, next + 3) & 0xffffffffL;
                    if (size > Chunk.SUB_BATCHES_MAX) {
                        throw new Damage("sub-batch size", where, position(next),
                                "at most " + Chunk.SUB_BATCHES_MAX + " in one chunk", size);
                    }
                }
                records += count;
                next = (int) (body + length);
            }
            if (next != stop) {
                throw new Damage("data size", where, position(next), next - at, stop - at);
            }
            if (records != wanted) {
                throw new Damage("records", where, position(at), wanted, records);
            }
        }

        /** Put the rows of the next entry, or of the next run of simple entries. Return false at the end. */
        boolean next(Rows rows) {
            if (at == stop) {
                return false;
            }
            if (window[at] < 0) {
                nextSubBatch(rows);
                return true;
            }
            rows.data = window;
            int count = 0;
            while (at < stop && window[at] >= 0) {
                rows.reserve(count + 1);
                rows.starts[count] = at + 4;
                rows.sizes[count] = Chunk.intAt(window, at);
                at = rows.starts[count] + rows.sizes[count];
                count++;
            }
            keep(rows, count);
            return true;
        }

        private void nextSubBatch(Rows rows) {
            int count = Chunk.shortAt(window, at + 1);
            int plain = Chunk.intAt(window, at + 3);
            int size = Chunk.intAt(window, at + 7);
            int body = at + Chunk.SUB_BATCH_HEADER_SIZE;
            int codec = window[at] >> 4 & 7;
            byte[] data = Decompression.of(window, body, size, codec, plain, where, position(body));
            rows.data = data;
            rows.reserve(count);
            if (!Chunk.walk(data, 0, data.length, count, rows.starts, rows.sizes, 0)) {
                throw new Damage("entries of a sub-batch", where, position(body),
                        count + " simple entries that fill " + data.length + " bytes",
                        "entries that do not");
            }
            at = body + size;
            keep(rows, count);
        }

        private void keep(Rows rows, int count) {
            long offset = tail.offsets[row] + done;
            done += count;
            long first = Math.max(0, part.lowOffset() - offset);
            long last = Math.min(count, part.highOffset() - offset);
            if (last > first) {
                if (first > 0) {
                    rows.drop(0, (int) first, (int) (last - first));
                }
                rows.number(offset + first, tail.times[row], (int) (last - first));
            }
        }
    }
}
