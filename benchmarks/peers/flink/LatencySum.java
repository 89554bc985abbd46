import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.connector.sink2.*;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.configuration.*;
import org.apache.flink.connector.datagen.source.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import java.util.concurrent.locks.LockSupport;

/**
 * Latency of the running keyed sum under an open loop. Each source subtask has a schedule that was fixed before the run: its
 * record i is due i / rate seconds after a common beginning, and carries that moment. Measured at the sink, per record.
 * The buffer timeout is 1 ms instead of 100, which is what those who look for latency set.
 */
public class LatencySum {
  static final int BUCKETS = 1024; static final double STEP = 1.02;
  static final long[] histogram = new long[BUCKETS]; static long written = 0;
  static synchronized void ended(long[] part, long rows) { for (int i = 0; i < BUCKETS; i++) histogram[i] += part[i]; written += rows; }
  static long nowMicros() { java.time.Instant n = java.time.Instant.now(); return n.getEpochSecond() * 1_000_000 + n.getNano() / 1_000; }

  static class Histogram implements Sink<Tuple3<Long, Double, Long>> {
    final long from; Histogram(long f) { from = f; }
    public SinkWriter<Tuple3<Long, Double, Long>> createWriter(WriterInitContext c) {
      return new SinkWriter<Tuple3<Long, Double, Long>>() {
        final long[] part = new long[BUCKETS]; long rows = 0;
        public void write(Tuple3<Long, Double, Long> e, Context c) {
          rows++;
          if (e.f2 >= from) part[(int) Math.min(BUCKETS - 1, Math.log(Math.max(1, nowMicros() - e.f2)) / Math.log(STEP))]++;
        }
        public void flush(boolean atEnd) { if (atEnd) ended(part, rows); }
        public void close() {}
      };
    }
  }
  static double percentile(double p) {
    long all = 0, reached = 0; for (long each : histogram) all += each;
    for (int i = 0; i < BUCKETS; i++) { reached += histogram[i]; if (reached >= p * all) return Math.pow(STEP, i + 1) / 1e3; }
    return Double.NaN;
  }
  public static void main(String[] a) throws Exception {
    int p = Integer.parseInt(a[0]); double rate = Double.parseDouble(a[1]) / p; double seconds = Double.parseDouble(a[2]), warmUp = Double.parseDouble(a[3]);
    long each = (long) (rate * (warmUp + seconds));
    Configuration conf = new Configuration();
    conf.setString("execution.checkpointing.interval", "1 s");
    conf.setString("execution.buffer-timeout.interval", "1 ms");
    conf.setString("pipeline.object-reuse", "true");
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(p, conf);
    TypeInformation<Tuple3<Long, Double, Long>> ti = Types.TUPLE(Types.LONG, Types.DOUBLE, Types.LONG);
    final long begin = nowMicros() + 6_000_000;
    DataGeneratorSource<Tuple3<Long, Double, Long>> src = new DataGeneratorSource<>(i -> {
      long due = begin + (long) ((i % each) / rate * 1e6), wait;
      while ((wait = due - nowMicros()) > 0) LockSupport.parkNanos(Math.min(wait * 1000, 500_000));
      long h = i * 0x9E3779B97F4A7C15L; return Tuple3.of((h >>> 40) % 10000L, (double) (h & 1023), due);
    }, p * each, ti);
    env.fromSource(src, WatermarkStrategy.<Tuple3<Long, Double, Long>>noWatermarks(), "src").keyBy(x -> x.f0)
       .reduce((x, y) -> Tuple3.of(x.f0, x.f1 + y.f1, y.f2)).sinkTo(new Histogram(begin + (long) (warmUp * 1e6)));
    env.execute();
    boolean right = written == p * each;
    System.out.printf("flink-java latency p=%d rows_s=%.0f p50=%.2fms p99=%.2fms p999=%.2fms combined=0%% rows=%d %s%n", p, rate * p, percentile(0.5), percentile(0.99), percentile(0.999), written,
      right ? "verified" : "WRONG: expected " + p * each);
    System.exit(right ? 0 : 1);
  }
}
