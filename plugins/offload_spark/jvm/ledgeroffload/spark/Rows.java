package ledgeroffload.spark;

import java.util.Arrays;

/** The rows of the next batch: an offset, a time, and the place of a value in {@code data}, for each. */
final class Rows {
    int count;
    long[] offsets = new long[0];
    long[] micros = new long[0];
    int[] starts = new int[0];
    int[] sizes = new int[0];
    byte[] data = new byte[0];

    private static final long MILLIS_MAX = Long.MAX_VALUE / 1000;

    /** Make room for more rows. The caller has checked the number. */
    void reserve(int more) {
        int wanted = count + more;
        if (offsets.length < wanted) {
            int size = Math.max(wanted, Math.min(2 * offsets.length, wanted + 65_536));
            offsets = Arrays.copyOf(offsets, size);
            micros = Arrays.copyOf(micros, size);
            starts = Arrays.copyOf(starts, size);
            sizes = Arrays.copyOf(sizes, size);
        }
    }

    /** Give the rows from {@code count} on these offsets and this time, and count them. */
    void number(long offset, long millis, int more) {
        // A time that the column cannot hold is clipped, as the Python source does.
        long micro = Math.max(-MILLIS_MAX, Math.min(millis, MILLIS_MAX)) * 1000;
        for (int row = count, end = count + more; row < end; row++) {
            offsets[row] = offset++;
            micros[row] = micro;
        }
        count += more;
    }

    /** Leave out the first rows of those from {@code from} on. */
    void drop(int from, int first, int kept) {
        System.arraycopy(starts, from + first, starts, from, kept);
        System.arraycopy(sizes, from + first, sizes, from, kept);
    }
}
