import com.rabbitmq.stream.BackOffDelayPolicy;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.Message;
import com.rabbitmq.stream.MessageHandler;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.codec.SimpleCodec;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Load on a stream by RabbitMQ's client for Java. Each command prints lines of numbers, and its end is in its code.
 *
 * <pre>
 * publish URL STREAM RATE SIZE_BYTES           messages that begin with their number, from 0 on. SIGTERM ends it: how
 *                                              many were confirmed
 * follow  URL STREAM NAME NUMBER               from the stored offset, else the first: each second how many came, the
 *                                              number of the next, and how many were missing or came again, if NUMBER
 *                                              is the first one. SIGTERM ends it, and stores the offset of the last one
 * compare URL STREAM URL MESSAGES ROUNDS       the seconds until so many have come from the one and from the other
 * </pre>
 */
public class Load {
  private static final int DIGITS = 12;

  public static void main(String[] words) throws Exception {
    try (Environment environment = environmentAt(words[1])) {
      switch (words[0]) {
        case "publish" -> publish(environment, words[2], Long.parseLong(words[3]), Integer.parseInt(words[4]));
        case "follow" -> follow(environment, words[2], words[3], Long.parseLong(words[4]));
        case "compare" -> {
          try (Environment other = environmentAt(words[3])) {
            for (int round = 0; round < Integer.parseInt(words[5]); round++) {
              double one = read(environment, words[2], Long.parseLong(words[4]));
              System.out.println(one + " " + read(other, words[2], Long.parseLong(words[4])));
            }
          }
        }
        default -> throw new IllegalArgumentException(words[0]);
      }
    }
  }

  private static Environment environmentAt(String url) {
    return Environment.builder()
        .uri(url)
        .codec(new SimpleCodec())
        .recoveryBackOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(500)))
        .topologyUpdateBackOffDelayPolicy(BackOffDelayPolicy.fixed(Duration.ofMillis(500)))
        .build();
  }

  private static void publish(Environment environment, String stream, long rate, int sizeBytes)
      throws Exception {
    Producer producer = environment.producerBuilder().stream(stream).build();
    AtomicLong confirmed = new AtomicLong();
    byte[] filler = new byte[sizeBytes];
    Arrays.fill(filler, (byte) '.');
    AtomicBoolean ends = new AtomicBoolean();
    Thread publishing = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      ends.set(true);
      join(publishing);
    }));
    long begun = System.nanoTime();
    long sent = 0;
    while (!ends.get()) {
      double due = (System.nanoTime() - begun) / 1e9 * rate;
      for (; sent < due; sent++) {
        byte[] body = filler.clone();
        byte[] number = String.format("%0" + DIGITS + "d", sent).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(number, 0, body, 0, DIGITS);
        producer.send(producer.messageBuilder().addData(body).build(), status -> {
          if (status.isConfirmed()) {
            confirmed.incrementAndGet();
          }
        });
      }
      Thread.sleep(10);
    }
    while (confirmed.get() < sent) {
      Thread.sleep(10);
    }
    producer.close();
    System.out.println(confirmed.get());
  }

  private static void join(Thread thread) {
    try {
      thread.join();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static void follow(Environment environment, String stream, String name, long first) throws Exception {
    Progress progress = new Progress(first);
    Consumer consumer = environment.consumerBuilder().stream(stream).name(name)
        .offset(OffsetSpecification.first())
        .manualTrackingStrategy().builder()
        .messageHandler(progress::take)
        .build();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      long last = progress.end();
      consumer.close();
      environment.storeOffset(name, stream, last);
      System.out.println(progress);
    }));
    while (true) {
      Thread.sleep(1000);
      System.out.println(progress);
    }
  }

  /** How far a consumer has come. */
  private static class Progress {
    private long messages, expected, missing, again, offset;
    private boolean hasEnded;

    Progress(long first) {
      expected = first;
    }

    synchronized void take(MessageHandler.Context context, Message message) {
      if (hasEnded) {
        return;
      }
      byte[] body = message.getBodyAsBinary();
      long number = Long.parseLong(new String(body, 0, DIGITS, StandardCharsets.US_ASCII));
      if (number < expected) {
        again++;
      } else {
        missing += number - expected;
        expected = number + 1;
      }
      offset = context.offset();
      if (++messages % 10_000 == 0) {
        try {
          context.storeOffset();
        } catch (RuntimeException error) {
          System.err.println("not stored: " + error); // the server is down
        }
      }
    }

    synchronized long end() {
      hasEnded = true;
      return offset;
    }

    @Override
    public synchronized String toString() {
      return messages + " " + expected + " " + missing + " " + again;
    }
  }

  private static double read(Environment environment, String stream, long messages) throws Exception {
    CountDownLatch left = new CountDownLatch(1);
    AtomicLong come = new AtomicLong();
    long begun = System.nanoTime();
    Consumer consumer = environment.consumerBuilder().stream(stream)
        .offset(OffsetSpecification.first())
        .messageHandler((context, message) -> {
          if (come.incrementAndGet() == messages) {
            left.countDown();
          }
        })
        .build();
    left.await();
    double seconds = (System.nanoTime() - begun) / 1e9;
    consumer.close();
    return seconds;
  }
}
