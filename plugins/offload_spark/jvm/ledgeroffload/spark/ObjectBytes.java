package ledgeroffload.spark;

import java.io.IOException;

/** The bytes of one fragment's object, wherever it is. It belongs to one task. */
interface ObjectBytes extends AutoCloseable {
    /**
     * Return the bytes of a fragment, of which nothing is read yet.
     *
     * @param isWhole whether most of the object will be read, and not its tail alone
     * @throws IllegalStateException if the object is gone
     * @throws Damage if it is known to have another size than the plan says
     */
    static ObjectBytes of(TaskPlan.Part part, TaskPlan.Fragment fragment, boolean isWhole) throws IOException {
        return part.signed() == null ? new FileBytes(part, fragment) : new HttpBytes(part, fragment, isWhole);
    }

    /**
     * Put {@code size} bytes from {@code position} on at the begin of {@code into}.
     *
     * @param stop a hint: the caller is likely to read on to this position, in order
     */
    void read(byte[] into, int size, long position, long stop) throws IOException;

    /**
     * Send the first request that {@link #read} will need, and do not wait for its reply: that of the tail, or of a small
     * object. At most as much as one reply holds arrives meanwhile. Call it once, before any read.
     */
    void begin();

    /** Forget all bytes that were fetched and not read: the next read asks the store again. */
    void forget();

    @Override
    void close() throws IOException;

    /** Return the error for an object that is no longer there. */
    static IllegalStateException gone(TaskPlan.Part part, TaskPlan.Fragment fragment, Exception cause) {
        return new IllegalStateException("stream '" + part.stream() + "': " + fragment.key()
                + " is gone: it was trimmed or replaced since the read was planned, or it was lost. "
                + "A frame keeps its plan: load it again, if need be with " + JavaReader.SETTING + "=python", cause);
    }
}
