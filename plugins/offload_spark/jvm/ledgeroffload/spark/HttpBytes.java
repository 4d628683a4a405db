package ledgeroffload.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The bytes of an object in a bucket, by GETs of a URL that the driver signed.
 *
 * <p>A reply stays open while the task reads on in order, so a fragment costs one GET for its tail and one for its
 * chunks, and a small one costs a single GET. Invariants: no message has the URL, which is a secret; no redirect
 * is followed; a reply about other bytes than those that were asked for is never used; bytes that arrived are not
 * fetched a second time after a failure.
 */
final class HttpBytes implements ObjectBytes {
    /** The largest object that one GET fetches whole. */
    private static final int SMALL_SIZE = 2 << 20;
    /** Fewer bytes than these are skipped in an open reply. More cost another GET. */
    static final int GAP_SIZE = 1 << 20;
    private static final int ATTEMPTS_MAX = 120;
    private static final int PAUSE_MILLIS_FIRST = 100;
    private static final int PAUSE_MILLIS_MAX = 10_000;
    private static final Duration CONNECT_LIMIT = Duration.ofSeconds(10);
    private static final Pattern RANGE = Pattern.compile("bytes (?:\\*|(\\d{1,18})-(\\d{1,18}))/(\\d{1,18}|\\*)");
    /** No quotes, brackets, queries and percent signs, and one slash at a time. */
    private static final Pattern PLAIN_WORDS = Pattern.compile("(?:[A-Za-z0-9 .,:;'()_-]|/(?!/)){1,200}");
    private static final Pattern CODE = Pattern.compile("<Code>([A-Za-z]{1,80})</Code>");

    /** The only client of this JVM, made at the first request. Its threads end with the JVM. */
    private static final class Shared {
        static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(CONNECT_LIMIT).followRedirects(HttpClient.Redirect.NEVER)
                .proxy(HttpClient.Builder.NO_PROXY).build();
    }

    /** A failure after which the same request may succeed, and the pause that the server asks for. */
    private static final class Again extends IOException {
        private static final long serialVersionUID = 1L;
        private final long pauseMillis;

        Again(String said, long pauseMillis) {
            super(said);
            this.pauseMillis = pauseMillis;
        }
    }

    private final TaskPlan.Part part;
    private final TaskPlan.Fragment fragment;
    private final TaskPlan.Signed signed;
    private final boolean isSmall;
    /** A whole small object, or null. */
    private byte[] kept;
    /** The first request, if it was sent before anybody waits for it. */
    private CompletableFuture<HttpResponse<HttpReply>> begun;
    private HttpReply reply;
    /** The position of the reply's next byte, and that behind its last wanted one. */
    private long at;
    private long replyStop;
    /** Whether the body of the reply ends there. */
    private boolean isExact;

    HttpBytes(TaskPlan.Part part, TaskPlan.Fragment fragment, boolean isWhole) {
        this.part = part;
        this.fragment = fragment;
        this.signed = part.signed();
        this.isSmall = isWhole && fragment.storedSize() <= SMALL_SIZE;
    }

    @Override
    public void begin() {
        long stop = fragment.storedSize();
        begun = send(isSmall ? 0 : stop - fragment.tailSize(), stop);
    }

    @Override
    public void read(byte[] into, int size, long position, long stop) throws IOException {
        if (!isSmall) {
            fetch(into, size, position, stop);
            return;
        }
        if (kept == null) {
            byte[] whole = new byte[(int) fragment.storedSize()];
            fetch(whole, whole.length, 0, whole.length);
            kept = whole;
        }
        System.arraycopy(kept, (int) position, into, 0, size);
    }

    @Override
    public void forget() {
        kept = null;
        close();
    }

    @Override
    public void close() {
        if (begun != null) {
            begun.thenAccept(found -> found.body().close());
            begun.cancel(true);
            begun = null;
        }
        closeReply();
    }

    private void closeReply() {
        if (reply != null) {
            reply.close();
            reply = null;
        }
    }

    private void fetch(byte[] into, int size, long position, long stop) throws IOException {
        int done = 0;
        int failures = 0;
        long failing = 0;
        while (done < size) {
            try {
                if (reply == null || position + done < at || position + done - at > GAP_SIZE
                        || position + size > replyStop) {
                    closeReply();
                    ask(position + done, Math.max(position + size, stop));
                }
                skipTo(position + done);
                // In steps, so that a failure costs little of what has arrived.
                int step = Math.min(size - done, GAP_SIZE);
                reply.read(into, done, step, signed.stallMillis());
                at += step;
                done += step;
                failures = 0;
                if (at == replyStop) {
                    if (isExact) {
                        reply.mustEnd(signed.stallMillis());
                    }
                    closeReply();
                }
            } catch (InterruptedIOException exc) {
                closeReply();
                throw exc;
            } catch (IOException exc) {
                closeReply();
                failing = failures++ == 0 ? System.nanoTime() : failing;
                pause(exc, failures, (System.nanoTime() - failing) / 1_000_000);
            }
        }
    }

    private void skipTo(long position) throws IOException {
        if (position > at) {
            reply.read(null, 0, position - at, signed.stallMillis());
            at = position;
        }
    }

    /** Wait before the next attempt, as long as the Python client does; throw if the patience ends before. */
    private void pause(IOException failure, int failures, long failingMillis) throws IOException {
        double most = Math.min(PAUSE_MILLIS_FIRST * Math.pow(2, Math.min(failures - 1, 32)), PAUSE_MILLIS_MAX);
        long pause = (long) (ThreadLocalRandom.current().nextDouble() * most);
        if (failure instanceof Again again) {
            pause = Math.max(pause, again.pauseMillis);
        }
        if (failures >= ATTEMPTS_MAX || failingMillis + pause > signed.patienceMillis()) {
            throw new IOException("stream '" + part.stream() + "': " + fragment.key() + " cannot be read: "
                    + failure.getMessage() + " (" + failures + (failures == 1 ? " attempt" : " attempts")
                    + " in " + failingMillis + " ms)");
        }
        try {
            Thread.sleep(pause);
        } catch (InterruptedException exc) {
            throw interrupted();
        }
    }

    /** Send a GET for the bytes from {@code start} to {@code stop}. */
    private CompletableFuture<HttpResponse<HttpReply>> send(long start, long stop) {
        HttpRequest request;
        try {
            request = HttpRequest.newBuilder(URI.create(fragment.place())).GET()
                    .timeout(CONNECT_LIMIT.plusMillis(signed.stallMillis()))
                    .header("Range", "bytes=" + start + "-" + (stop - 1)).header("Accept-Encoding", "identity")
                    .header("User-Agent", "ledger-offload").build();
        } catch (IllegalArgumentException exc) { // whose text has the URL
            throw new IllegalStateException(fragment.key() + ": the plan has no URL of it");
        }
        return Shared.CLIENT.sendAsync(request, head -> new HttpReply());
    }

    /** Wait for the reply about the bytes from {@code start} to {@code stop}, and keep it. */
    private void ask(long start, long stop) throws IOException {
        // The first request is the one that was begun, if one was. Else its reply is about other bytes, and refused.
        CompletableFuture<HttpResponse<HttpReply>> sent = begun == null ? send(start, stop) : begun;
        begun = null;
        HttpResponse<HttpReply> found;
        try {
            found = sent.get();
        } catch (InterruptedException exc) {
            sent.cancel(true);
            throw interrupted();
        } catch (ExecutionException exc) {
            throw new Again(said(exc.getCause()), 0);
        }
        reply = found.body();
        switch (found.statusCode()) {
            case 206 -> checkPart(found, start, stop);
            case 200 -> checkWhole(found, stop);
            default -> throw refusal(found);
        }
    }

    private void checkPart(HttpResponse<HttpReply> found, long start, long stop) throws IOException {
        String said = found.headers().firstValue("content-range").orElse("");
        Matcher range = RANGE.matcher(said);
        long body = lengthOf(found, stop - start);
        if (!range.matches() || range.group(1) == null) {
            throw new Again("asked for a part, and the reply does not say which part it is", 0);
        }
        checkSize(range.group(3));
        if (Long.parseLong(range.group(1)) != start || Long.parseLong(range.group(2)) != stop - 1
                || body != stop - start) {
            throw new Again("asked for bytes " + start + "-" + (stop - 1) + " and got " + body + " bytes of "
                    + range.group(1) + "-" + range.group(2), 0);
        }
        at = start;
        replyStop = stop;
        isExact = true;
    }

    /** A server may ignore ranges, and then sends the whole object. */
    private void checkWhole(HttpResponse<HttpReply> found, long stop) throws IOException {
        long size = lengthOf(found, -1);
        if (size < 0) {
            throw new Again("asked for a part, and the reply has no size", 0);
        }
        checkSize(Long.toString(size));
        at = 0;
        replyStop = stop;
        isExact = stop == size;
    }

    private void checkSize(String size) {
        if (!size.equals("*") && Long.parseLong(size) != fragment.storedSize()) {
            throw new Damage("object size", fragment.key(), 0, fragment.storedSize(), size);
        }
    }

    private static long lengthOf(HttpResponse<HttpReply> found, long otherwise) throws IOException {
        try {
            return found.headers().firstValueAsLong("content-length").orElse(otherwise);
        } catch (NumberFormatException exc) {
            throw new Again("the reply has a length that is no number", 0);
        }
    }

    private IOException refusal(HttpResponse<HttpReply> found) throws IOException {
        int status = found.statusCode();
        Matcher code = CODE.matcher(reply.text(2000, signed.stallMillis()));
        String said = "HTTP " + status + (code.find() ? " " + code.group(1) : "");
        closeReply();
        if (status == 404 || status == 410) {
            throw ObjectBytes.gone(part, fragment, null);
        }
        if (status == 416) {
            Matcher range = RANGE.matcher(found.headers().firstValue("content-range").orElse(""));
            String size = range.matches() ? range.group(3) : "less";
            throw new Damage("object size", fragment.key(), 0, fragment.storedSize(), size);
        }
        if (status == 408 || status == 429 || status >= 500) {
            return new Again(said, pauseAskedFor(found));
        }
        String subject = "stream '" + part.stream() + "': " + fragment.key() + " cannot be read: ";
        if (status >= 300 && status < 400) {
            throw new IllegalStateException(subject + said + ", a redirect, which is not followed. Is the region right?");
        }
        if (status < 404 && System.currentTimeMillis() >= signed.untilMillis()) {
            throw new IllegalStateException(subject + "the signed requests of this plan expired after "
                    + signed.seconds() + " s (" + said + "). Load the frame again, with a larger signedSeconds or after "
                    + JavaReader.SETTING + "=python. Signed requests also end with the credentials that signed them");
        }
        throw new IllegalStateException(subject + "the store refused a signed request: " + said
                + ". The credentials of the driver must permit reads; " + JavaReader.SETTING
                + "=python uses those of the executors");
    }

    /** Return the seconds of Retry-After as milliseconds; 0 if there are none. A date asks for no pause here. */
    private static long pauseAskedFor(HttpResponse<HttpReply> found) {
        String said = found.headers().firstValue("retry-after").orElse("").strip();
        return said.matches("\\d{1,6}") ? 1000 * Long.parseLong(said) : 0;
    }

    /**
     * Return the text of a failure of the client, without any URL. Such a text may quote what a server sent, and that may
     * be a part of the request. So only the name of the failure is left of a text that is more than plain words.
     */
    static String said(Throwable failure) {
        String text = String.valueOf(failure.getMessage());
        String name = failure.getClass().getSimpleName();
        return failure.getMessage() != null && PLAIN_WORDS.matcher(text).matches() ? name + ": " + text : name;
    }

    static InterruptedIOException interrupted() {
        Thread.currentThread().interrupt();
        return new InterruptedIOException("the task was interrupted");
    }
}
