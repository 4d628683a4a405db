package ledgeroffload.spark;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** The bytes of a file. */
final class FileBytes implements ObjectBytes {
    private final FileChannel file;
    private final String where;

    FileBytes(TaskPlan.Part part, TaskPlan.Fragment fragment) throws IOException {
        where = fragment.key();
        try {
            file = FileChannel.open(Path.of(fragment.place()), StandardOpenOption.READ);
        } catch (NoSuchFileException exc) {
            throw ObjectBytes.gone(part, fragment, exc);
        }
        long size = file.size();
        if (size != fragment.storedSize()) {
            file.close();
            throw new Damage("object size", where, 0, fragment.storedSize(), size);
        }
    }

    @Override
    public void read(byte[] into, int size, long position, long stop) throws IOException {
        ByteBuffer buffer = ByteBuffer.wrap(into, 0, size);
        while (buffer.hasRemaining()) {
            if (file.read(buffer, position + buffer.position()) < 0) {
                throw new EOFException(where + " ended at byte " + (position + buffer.position()));
            }
        }
    }

    @Override
    public void begin() {
        // There is nothing to wait for.
    }

    @Override
    public void forget() {
        // Nothing is kept.
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}
