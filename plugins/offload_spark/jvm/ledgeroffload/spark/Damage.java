package ledgeroffload.spark;

/** Stored bytes break their format. The text is that of the Python error {@code Corrupt}, and names the stream. */
public final class Damage extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final String where;
    private final String said;

    Damage(String what, String where, long position, Object expected, Object found) {
        this(where, position, what + ": expected " + expected + ", found " + found);
    }

    private Damage(String where, long position, String said) {
        super(where + " at byte " + position + ": " + said);
        this.where = where;
        this.said = said;
    }

    /** Return the same damage at another byte: that of the block that holds the chunk. */
    Damage at(long position) {
        return new Damage(where, position, said);
    }

    private Damage(String stream, Damage damage) {
        super("stream '" + stream + "': " + damage.getMessage());
        this.where = damage.where;
        this.said = damage.said;
    }

    Damage of(String stream) {
        return new Damage(stream, this);
    }
}
