// Pulsar's own offloader on an S3 bucket, for one command of a test:
//
//   write ENDPOINT BUCKET BLOCK LEDGER UUID NAME    entries from stdin become a ledger, and Pulsar offloads it
//   read  ENDPOINT BUCKET BLOCK LEDGER UUID NAME    Pulsar reads the ledger; its entries go to stdout
//   scan  ENDPOINT BUCKET BLOCK                     Pulsar lists the bucket; a line for each object
//   delete ENDPOINT BUCKET BLOCK LEDGER UUID NAME   Pulsar deletes both objects
//   time  ENDPOINT BUCKET BLOCK LEDGER UUID NAME ENTRIES SIZE    for benchmarks/pulsar.py: a line for each job
//
// On stdin and stdout an entry is its size (4 bytes, big-endian) and its bytes. The keys are in ACCESS_KEY_ID and
// ACCESS_KEY_SECRET, as Pulsar's driver S3 takes them.

import io.netty.buffer.Unpooled;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.impl.LedgerEntriesImpl;
import org.apache.bookkeeper.client.impl.LedgerEntryImpl;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStatsDisable;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.BlobStoreManagedLedgerOffloader;
import org.apache.bookkeeper.mledger.offload.jcloud.impl.OffsetsCache;
import org.apache.bookkeeper.mledger.offload.jcloud.provider.TieredStorageConfiguration;
import org.apache.bookkeeper.net.BookieId;

public final class Peer {
    private static final int AT_ONCE = 100;

    public static void main(String[] words) throws Exception {
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20));
        System.setOut(System.err); // nothing but answers goes to stdout
        LedgerOffloader pulsar = offloader(words[1], words[2], words[3]);
        boolean hasLedger = words.length > 4;
        long ledger = hasLedger ? Long.parseLong(words[4]) : 0;
        UUID attempt = hasLedger ? UUID.fromString(words[5]) : null;
        Map<String, String> metadata = new HashMap<>(pulsar.getOffloadDriverMetadata());
        metadata.put("ManagedLedgerName", hasLedger ? words[6] : "");
        switch (words[0]) {
            case "write" -> pulsar.offload(new Listed(ledger, entries()), attempt,
                    Map.of("ManagedLedgerName", words[6])).get();
            case "read" -> read(pulsar.readOffloaded(ledger, attempt, metadata).get(), new DataOutputStream(out));
            case "scan" -> pulsar.scanLedgers(found -> {
                out.printf("%s %d %s %d%n", found.getName(), found.getLedgerId(), found.getUuid(), found.getSize());
                return true;
            }, metadata);
            case "delete" -> pulsar.deleteOffloaded(ledger, attempt, metadata).get();
            case "time" -> time(pulsar, ledger, attempt, metadata, out, Integer.parseInt(words[7]),
                    Integer.parseInt(words[8]));
            default -> throw new IllegalArgumentException(words[0]);
        }
        out.flush();
        System.exit(0); // threads of Pulsar's libraries live on
    }

    private static LedgerOffloader offloader(String endpoint, String bucket, String block) throws Exception {
        TieredStorageConfiguration where = TieredStorageConfiguration.create(Map.of(
                "managedLedgerOffloadDriver", "S3",
                "managedLedgerOffloadBucket", bucket,
                "managedLedgerOffloadServiceEndpoint", endpoint,
                "managedLedgerOffloadMaxBlockSizeInBytes", block));
        OrderedScheduler threads = OrderedScheduler.newSchedulerBuilder().numThreads(1).name("peer").build();
        Map<String, String> names = new HashMap<>(Map.of(
                LedgerOffloader.METADATA_SOFTWARE_VERSION_KEY.toLowerCase(), "4.0.8",
                LedgerOffloader.METADATA_SOFTWARE_GITSHA_KEY.toLowerCase(), "0",
                LedgerOffloader.METADATA_PULSAR_CLUSTER_NAME.toLowerCase(), "tests"));
        return BlobStoreManagedLedgerOffloader.create(where, names, threads, threads,
                LedgerOffloaderStatsDisable.INSTANCE, new OffsetsCache());
    }

    private static void read(ReadHandle ledger, DataOutputStream out) throws Exception {
        long last = ledger.getLastAddConfirmed();
        for (long first = 0; first <= last; first += AT_ONCE) {
            try (LedgerEntries some = ledger.readAsync(first, Math.min(first + AT_ONCE - 1, last)).get()) {
                for (LedgerEntry each : some) {
                    byte[] body = each.getEntryBytes();
                    out.writeInt(body.length);
                    out.write(body);
                }
            }
        }
        out.flush();
    }

    /** Prints the name and the seconds of each job. Every job is warmed up by a part of itself. */
    private static void time(LedgerOffloader pulsar, long id, UUID attempt, Map<String, String> names, PrintStream out,
            int entries, int size) throws Exception {
        byte[] body = new byte[size];
        new Random(1).nextBytes(body);
        UUID first = UUID.randomUUID();
        pulsar.offload(new Listed(id, Collections.nCopies(entries / 8, body)), first, names).get();
        timed("offload", out, () -> pulsar.offload(new Listed(id, Collections.nCopies(entries, body)), attempt, names).get());
        walk(pulsar.readOffloaded(id, first, names).get());
        pulsar.deleteOffloaded(id, first, names).get();
        ReadHandle ledger = pulsar.readOffloaded(id, attempt, names).get();
        Random draw = new Random(2);
        timed("random, cold", out, () -> {
            long end = System.nanoTime() + 20_000_000_000L;
            int done = 0;
            for (; done < 2000 && System.nanoTime() < end; done++) {
                long entry = draw.nextInt(entries);
                ledger.readAsync(entry, entry).get().close();
            }
            out.printf("random, cold: entries\t%d%n", done);
        });
        timed("sequential", out, () -> walk(ledger));
        timed("random, walked", out, () -> {
            for (int done = 0; done < 2000; done++) {
                long entry = draw.nextInt(entries);
                ledger.readAsync(entry, entry).get().close();
            }
        });
        for (int readers : new int[] {1, 2, 4}) {
            timed(readers + " readers", out, () -> {
                List<Thread> threads = new ArrayList<>();
                for (int number = 0; number < readers; number++) {
                    threads.add(new Thread(() -> walk(ledger)));
                }
                threads.forEach(Thread::start);
                for (Thread each : threads) {
                    each.join();
                }
            });
        }
    }

    private interface Job {
        void run() throws Exception;
    }

    private static void timed(String name, PrintStream out, Job job) throws Exception {
        long begin = System.nanoTime();
        job.run();
        out.printf("%s\t%.6f%n", name, (System.nanoTime() - begin) / 1e9);
        out.flush();
    }

    private static void walk(ReadHandle ledger) {
        long last = ledger.getLastAddConfirmed();
        try {
            for (long at = 0; at <= last; at += AT_ONCE) {
                ledger.readAsync(at, Math.min(at + AT_ONCE - 1, last)).get().close();
            }
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static List<byte[]> entries() throws IOException {
        List<byte[]> found = new ArrayList<>();
        DataInputStream in = new DataInputStream(System.in);
        while (true) {
            try {
                found.add(in.readNBytes(in.readInt()));
            } catch (EOFException end) {
                return found;
            }
        }
    }

    /** A closed ledger of entries in memory, in place of one of BookKeeper. */
    private static final class Listed implements ReadHandle {
        private final List<byte[]> bodies;
        private final LedgerMetadata metadata;
        private final long id;

        Listed(long id, List<byte[]> bodies) {
            this.id = id;
            this.bodies = bodies;
            metadata = LedgerMetadataBuilder.create().withId(id)
                    .withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                    .withDigestType(DigestType.CRC32C).withPassword(new byte[0])
                    .withCustomMetadata(Map.of("application", "pulsar".getBytes(StandardCharsets.UTF_8)))
                    .newEnsembleEntry(0, List.of(BookieId.parse("b1:3181")))
                    .withClosedState().withLastEntryId(bodies.size() - 1).withLength(getLength())
                    .build();
        }

        @Override
        public long getLength() {
            return bodies.stream().mapToLong(body -> body.length).sum();
        }

        @Override
        public CompletableFuture<LedgerEntries> readAsync(long first, long last) {
            List<LedgerEntry> some = new ArrayList<>();
            for (long at = first; at <= last; at++) {
                byte[] body = bodies.get((int) at);
                some.add(LedgerEntryImpl.create(id, at, body.length, Unpooled.wrappedBuffer(body)));
            }
            return CompletableFuture.completedFuture(LedgerEntriesImpl.create(some));
        }

        @Override
        public CompletableFuture<LedgerEntries> readUnconfirmedAsync(long first, long last) {
            return readAsync(first, last);
        }

        @Override
        public CompletableFuture<Long> readLastAddConfirmedAsync() {
            return CompletableFuture.completedFuture(getLastAddConfirmed());
        }

        @Override
        public CompletableFuture<Long> tryReadLastAddConfirmedAsync() {
            return readLastAddConfirmedAsync();
        }

        @Override
        public CompletableFuture<LastConfirmedAndEntry> readLastAddConfirmedAndEntryAsync(
                long entry, long timeoutMs, boolean parallel) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException());
        }

        @Override
        public long getLastAddConfirmed() {
            return bodies.size() - 1;
        }

        @Override
        public boolean isClosed() {
            return true;
        }

        @Override
        public long getId() {
            return id;
        }

        @Override
        public LedgerMetadata getLedgerMetadata() {
            return metadata;
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}
