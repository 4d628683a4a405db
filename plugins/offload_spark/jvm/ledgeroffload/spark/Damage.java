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

    private Damage(String range, Damage damage) {
        super(range + " are damaged: " + damage.getMessage()
                + "; to read the other records, set onDamage=skip");
        this.where = damage.where;
        this.said = damage.said;
    }

    /** Return the damage as the error of a read: with the stream and the offsets, and what to do. */
    Damage of(TaskPlan.Part part, long firstOffset, long nextOffset) {
        String number = part.number() > 1 ? ", part " + part.number() : "";
        return new Damage("stream '" + part.name() + "'" + number + ": offsets [" + firstOffset + ", "
                + nextOffset + ")", this);
    }
}
