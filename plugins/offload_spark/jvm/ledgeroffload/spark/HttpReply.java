package ledgeroffload.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.net.http.HttpResponse;

/**
 * The body of a reply while it arrives: the threads of the client put buffers in, and a task takes them out.
 *
 * <p>Invariants: at most {@link #AHEAD} buffers wait for the task, some 8 MiB, and the server is slowed down then. The
 * task waits no longer than it says for a byte, nor than {@link #BYTES_PER_SECOND_MIN} allow for all of them.
 */
final class HttpReply implements HttpResponse.BodySubscriber<HttpReply> {
    private static final int AHEAD = 512;
    /** These two are those of the Python client (offload_cloud.slow). */
    private static final int STALLS_MAX = 6;
    private static final int BYTES_PER_SECOND_MIN = 64 * 1024;
    private static final Object END = new Object();

    private final LinkedBlockingQueue<Object> arrived = new LinkedBlockingQueue<>();
    private final ArrayDeque<ByteBuffer> waiting = new ArrayDeque<>();
    private volatile Flow.Subscription subscription;
    private volatile boolean isClosed;
    private boolean isEnd;

    @Override
    public CompletionStage<HttpReply> getBody() {
        return CompletableFuture.completedFuture(this);
    }

    @Override
    public void onSubscribe(Flow.Subscription given) {
        subscription = given;
        if (isClosed) {
            given.cancel();
        } else {
            given.request(AHEAD);
        }
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
        arrived.add(buffers);
    }

    @Override
    public void onError(Throwable failure) {
        arrived.add(failure);
    }

    @Override
    public void onComplete() {
        arrived.add(END);
    }

    /** Put the next {@code size} bytes at {@code at} of {@code into}; drop them if that is null. */
    void read(byte[] into, int at, long size, long stallMillis) throws IOException {
        long limit = System.nanoTime()
                + TimeUnit.MILLISECONDS.toNanos(STALLS_MAX * stallMillis + size * 1000 / BYTES_PER_SECOND_MIN);
        long left = size;
        while (left > 0) {
            ByteBuffer buffer = next(stallMillis, limit);
            if (buffer == null) {
                throw new IOException("the reply ended " + left + " bytes too early");
            }
            int taken = (int) Math.min(left, buffer.remaining());
            if (into == null) {
                buffer.position(buffer.position() + taken);
            } else {
                buffer.get(into, at, taken);
                at += taken;
            }
            left -= taken;
        }
    }

    /** Wait for the end of the body. Then the connection can serve another request. */
    void mustEnd(long stallMillis) throws IOException {
        long limit = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(STALLS_MAX * stallMillis);
        if (next(stallMillis, limit) != null) {
            throw new IOException("the reply has more bytes than were asked for");
        }
    }

    /** Return at most {@code most} bytes of the body as text: that of an error. */
    String text(int most, long stallMillis) {
        StringBuilder found = new StringBuilder();
        long limit = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(STALLS_MAX * stallMillis);
        try {
            for (ByteBuffer buffer; found.length() < most && (buffer = next(stallMillis, limit)) != null;) {
                while (buffer.hasRemaining() && found.length() < most) {
                    found.append((char) (buffer.get() & 0x7f));
                }
            }
        } catch (IOException exc) {
            return found.toString(); // of what arrived: the status says what is wrong
        }
        return found.toString();
    }

    void close() {
        isClosed = true;
        Flow.Subscription known = subscription;
        if (known != null && !isEnd) {
            known.cancel();
        }
    }

    /** Return the buffer with the next byte; null at the end. */
    private ByteBuffer next(long stallMillis, long limit) throws IOException {
        while (true) {
            while (!waiting.isEmpty()) {
                if (waiting.peek().hasRemaining()) {
                    return waiting.peek();
                }
                waiting.remove();
            }
            if (isEnd) {
                return null;
            }
            long nanos = Math.min(TimeUnit.MILLISECONDS.toNanos(stallMillis), limit - System.nanoTime());
            Object found;
            try {
                found = nanos <= 0 ? arrived.poll() : arrived.poll(nanos, TimeUnit.NANOSECONDS);
            } catch (InterruptedException exc) {
                throw HttpBytes.interrupted();
            }
            if (found == null || nanos <= 0) {
                throw new IOException(nanos <= 0 ? "the reply is too slow" : "no byte for " + stallMillis + " ms");
            }
            if (found == END) {
                isEnd = true;
            } else if (found instanceof Throwable failure) {
                throw new IOException(HttpBytes.said(failure));
            } else {
                ((List<?>) found).forEach(each -> waiting.add((ByteBuffer) each));
                subscription.request(1);
            }
        }
    }
}
