import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Kafka -> keyed sum -> Kafka by Flink SQL, exactly once, with a checkpoint every second and updates of a key put together.
 * `net` is from the submission of the planned job to its end.
 */
public class KafkaSum {
  public static void main(String[] args) throws Exception {
    String servers = args[0], read = args[1], write = args[2], format = args[3];
    long rows = Long.parseLong(args[4]);
    TableEnvironment env = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
    String[][] settings = {
      {"parallelism.default", args[5]}, {"execution.checkpointing.interval", "1 s"}, {"execution.checkpointing.mode", "EXACTLY_ONCE"},
      {"table.exec.mini-batch.enabled", "true"}, {"table.exec.mini-batch.allow-latency", "200 ms"}, {"table.exec.mini-batch.size", "100000"},
      {"execution.checkpointing.dir", "file://" + System.getProperty("java.io.tmpdir") + "/flink-kafka-" + System.nanoTime()}};
    for (String[] each : settings) env.getConfig().set(each[0], each[1]);
    String place = "'properties.bootstrap.servers' = '" + servers + "'";
    env.executeSql("CREATE TABLE events (k BIGINT NOT NULL, v BIGINT NOT NULL, pad STRING NOT NULL) WITH ('connector' = 'kafka', 'topic' = '" + read
      + "', " + place + ", 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = '" + format + "')");
    env.executeSql("CREATE TABLE totals (k BIGINT NOT NULL, total BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', 'topic' = '"
      + write + "', " + place + ", 'key.format' = 'json', 'value.format' = 'json', 'sink.delivery-guarantee' = 'exactly-once', "
      + "'sink.transactional-id-prefix' = 'bench', 'properties.transaction.timeout.ms' = '600000')");
    long began = System.nanoTime();
    env.executeSql("INSERT INTO totals SELECT k, SUM(v) FROM events GROUP BY k").await();
    double net = (System.nanoTime() - began) / 1e9;
    System.out.printf("flink kafka-%s p=%s rows=%d rate=%.3fM/s net=%.3fs%n", format, args[5], rows, rows / net / 1e6, net);
    System.exit(0);
  }
}
