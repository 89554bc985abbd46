import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.*;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.*;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.*;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.*;
import org.apache.flink.types.*;
import org.apache.flink.util.CloseableIterator;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;

/**
 * A question of Nexmark in Flink SQL, on the events of examples/nexmark/generator.py: the same functions of the same integers.
 * Nexmark SQL_DIRECTORY QUERY EVENTS PARALLELISM CHECKPOINTS           speed, into a black hole; checkpoints every second
 * Nexmark SQL_DIRECTORY QUERY,QUERY EVENTS PARALLELISM check DIRECTORY RATE BEGIN   answers as changelogs, a file for each
 * Nexmark events KIND EVENTS                                           the events as text, to compare with those of Python
 * The first line of a question says which columns of which tables it reads; only those are made.
 */
public class Nexmark {
  // --- words, as in words.py ---

  static final String[] FIRST = {"Ada", "Bea", "Cem", "Dov", "Edo", "Fay", "Gus", "Hal", "Ida", "Jan", "Kim", "Lou", "Mia", "Ned", "Ola", "Pia"};
  static final String[] LAST = {"Abel", "Brook", "Castro", "Dunn", "Eck", "Frost", "Garcia", "Holm", "Ito", "Jones", "Kovac", "Lund", "Moss"};
  static final String[] CITIES = {"Portland", "Salem", "Boise", "Sacramento", "Fresno", "Reno", "Provo", "Spokane", "Tucson", "Casper"};
  static final String[] STATES = {"OR", "OR", "ID", "CA", "CA", "NV", "UT", "WA", "AZ", "WY"};
  static final String[] ADJECTIVES = {"old", "rare", "small", "green", "quiet", "heavy", "round", "signed"};
  static final String[] THINGS = {"clock", "lamp", "chair", "map", "camera", "vase", "coin", "violin", "kettle", "atlas", "cabinet", "compass"};
  static final String[] HOT = {"search", "social", "letter", "radio"};
  static final int OTHERS = 10_000;

  static long mixed(long v) {
    v ^= v >>> 32; v *= 0xD6E8FEB86659FD93L;
    v ^= v >>> 29; v *= 0x9E3779B97F4A7C15L;
    return v ^ v >>> 32;
  }
  static String letters(long pool, long number, int length) {
    StringBuilder found = new StringBuilder();
    while (found.length() < length) {
      long bits = mixed((pool << 48) + (number << 16) + found.length());
      for (int i = Math.min(10, length - found.length()); i > 0; i--) {
        found.append((char) ('a' + Long.remainderUnsigned(bits, 26)));
        bits = Long.divideUnsigned(bits, 26);
      }
    }
    return found.toString();
  }
  static StringData[] pool(List<String> texts) { return texts.stream().map(StringData::fromString).toArray(StringData[]::new); }
  static StringData[] fillers(int pool, int shortest, int longest) {
    return pool(IntStream.range(0, 512).mapToObj(i -> letters(pool, i, shortest + i % (longest - shortest + 1))).collect(Collectors.toList()));
  }
  static StringData[] products(String[] left, String[] right) {
    return pool(Arrays.stream(left).flatMap(a -> Arrays.stream(right).map(b -> a + " " + b)).collect(Collectors.toList()));
  }
  static StringData[] emails() { return pool(IntStream.range(0, 1024).mapToObj(i -> letters(1, i, 7) + "@" + letters(2, i, 5) + ".example").collect(Collectors.toList())); }
  static StringData[] cards() {
    return pool(IntStream.range(0, 1024).mapToObj(i -> IntStream.range(0, 4)
      .mapToObj(part -> String.format("%04d", Long.remainderUnsigned(mixed((3L << 48) + 4L * i + part), 10_000))).collect(Collectors.joining(" "))).collect(Collectors.toList()));
  }
  static StringData[] channels() { return pool(Stream.concat(Arrays.stream(HOT), IntStream.range(0, OTHERS).mapToObj(i -> "channel-" + i)).collect(Collectors.toList())); }
  static StringData[] urls() {
    return pool(IntStream.range(0, HOT.length + OTHERS).mapToObj(i -> {
      int other = i - HOT.length;
      String suffix = other >= 0 && other % 10 > 0 ? "&channel_id=" + Long.remainderUnsigned(mixed(other), 1_000_000) : "";
      return "https://auction.example/" + letters(4, i, 5) + "/" + letters(5, i, 5) + "/" + letters(6, i, 5) + "/item?page=1" + suffix;
    }).collect(Collectors.toList()));
  }

  // --- fields, as in generator.py ---

  static final long[] PRICES = new long[61];
  static {
    int[] mantissas = {1000, 1259, 1585, 1995, 2512, 3162, 3981, 5012, 6310, 7943};
    long scale = 1; for (int i = 0; i < 60; i++) { PRICES[i] = mantissas[i % 10] * scale; if (i % 10 == 9) scale *= 10; }
    PRICES[60] = 1_000_000_000L;
  }
  static long below(long bits, long bound) { return (bits << 2 >>> 34) * bound >>> 30; }

  /** One row at a time: its index in its kind, the number of its event and its group. */
  static class Place implements Serializable {
    final long seed; final long rate; final long begin; long index, number, group;
    Place(long seed, long rate, long begin) { this.seed = seed; this.rate = rate; this.begin = begin; }
    long hash(int field) { return mixed(number * 0xA0761D6478BD642FL + salts[field]); }
    final long[] salts = new long[40];
    Place salted() { for (int i = 0; i < salts.length; i++) salts[i] = mixed(seed * 1_000_003 + i); return this; }
    long time() { return begin + number * 1000 / rate; }
    long price(int field) { long b = hash(field); int p = (int) below(b, 60); return (PRICES[p] + ((PRICES[p + 1] - PRICES[p]) * (b & 0xFFFF) >> 16)) / 10; }
    long person(int field, long hot) { long b = hash(field); return 1000 + ((b >>> 62) > 0 ? hot : group - below(b, Math.min(group + 1, 1000))); }
    long auction() { long b = hash(31), last = 3 * group + 2; return 1000 + ((b >>> 62) > 1 ? last / 100 * 100 : last - below(b, Math.min(last + 1, 100))); }
    int channel() { long b = hash(34); return (int) ((b >>> 62) > 1 ? below(b, HOT.length) : HOT.length + below(b, OTHERS)); }
    long auctionMs() { return Math.max(1, 100 * 50 / 3 * 1000L / rate); }
  }
  interface Field extends Serializable { Object of(Place p); }
  static Field text(int field, StringData[] pool) { return p -> pool[(int) below(p.hash(field), pool.length)]; }
  static final Map<String, Integer> IN_A_GROUP = Map.of("people", 1, "auctions", 3, "bids", 46);
  static final Map<String, Integer> BEHIND = Map.of("people", 0, "auctions", 1, "bids", 4);
  static final Map<String, String> COLUMNS = Map.of(
    "people", "id name email_address credit_card city state date_time extra",
    "auctions", "id item_name description initial_bid reserve date_time expires seller category extra",
    "bids", "auction bidder price channel url date_time extra");
  static final Set<String> TEXTS = Set.of("name", "email_address", "credit_card", "city", "state", "extra", "item_name", "description", "channel", "url");
  static final Set<String> TIMES = Set.of("date_time", "expires");

  static Field field(String kind, String column) {
    switch (kind + "." + column) {
      case "people.id": case "auctions.id": return p -> p.index + 1000;
      case "people.name": return text(11, products(FIRST, LAST));
      case "people.email_address": return text(12, emails());
      case "people.credit_card": return text(13, cards());
      case "people.city": return text(14, pool(List.of(CITIES)));
      case "people.state": return text(14, pool(List.of(STATES)));
      case "people.extra": return text(15, fillers(11, 90, 130));
      case "auctions.item_name": return text(21, products(ADJECTIVES, THINGS));
      case "auctions.description": return text(22, fillers(21, 80, 120));
      case "auctions.initial_bid": return p -> p.price(23);
      case "auctions.reserve": return p -> p.price(23) + p.price(25);
      case "auctions.expires": return p -> TimestampData.fromEpochMillis(p.time() + 1 + below(p.hash(24), 2 * p.auctionMs()));
      case "auctions.seller": return p -> p.person(26, p.group / 100 * 100);
      case "auctions.category": return p -> 10 + below(p.hash(27), 5);
      case "auctions.extra": return text(28, fillers(28, 300, 340));
      case "bids.auction": return Place::auction;
      case "bids.bidder": return p -> p.person(32, Math.max(p.group / 100 * 100 - 1, 0));
      case "bids.price": return p -> p.price(33);
      case "bids.channel": { StringData[] pool = channels(); return p -> pool[p.channel()]; }
      case "bids.url": { StringData[] pool = urls(); return p -> pool[p.channel()]; }
      case "bids.extra": return text(35, fillers(35, 8, 24));
      case "people.date_time": case "auctions.date_time": case "bids.date_time": return p -> TimestampData.fromEpochMillis(p.time());
      default: throw new IllegalArgumentException(kind + " have no column " + column);
    }
  }

  /** Rows of one kind by their index. Flink deals out contiguous parts of the indices: here they become blocks, so that event time advances together. */
  static class Rows implements GeneratorFunction<Long, RowData> {
    static final int BLOCK_GROUPS = 1024;
    final String kind; final String[] columns; final int perGroup, behind, parallelism; final long rows; final Place place;
    transient Field[] fields;
    Rows(String kind, String[] columns, long events, int parallelism, long rate, long begin) {
      this.kind = kind; this.columns = columns; perGroup = IN_A_GROUP.get(kind); behind = BEHIND.get(kind); this.parallelism = parallelism;
      rows = events / 50 * perGroup; place = new Place(1, rate, begin).salted();
    }
    public RowData map(Long given) { if (first == 0) first = System.currentTimeMillis(); return row(dealt(given)); }
    long dealt(long i) {
      long block = (long) perGroup * BLOCK_GROUPS, share = rows / parallelism;
      if (parallelism == 1 || rows % (block * parallelism) != 0) return i;
      long split = i / share, j = i - split * share;
      return (j / block * parallelism + split) * block + j % block;
    }
    RowData row(long index) {
      if (fields == null) fields = Arrays.stream(columns).map(c -> field(kind, c)).toArray(Field[]::new);
      place.index = index; place.group = index / perGroup; place.number = place.group * 50 + behind + index % perGroup;
      GenericRowData row = new GenericRowData(fields.length);
      for (int i = 0; i < fields.length; i++) row.setField(i, fields[i].of(place));
      return row;
    }
  }
  static volatile long first = 0;

  static LogicalType type(String column) { return TEXTS.contains(column) ? new VarCharType(VarCharType.MAX_LENGTH) : TIMES.contains(column) ? new TimestampType(3) : new BigIntType(); }

  // --- functions that SQL does not have ---

  public static class CountChar extends ScalarFunction {
    public long eval(String text, String letter) { long n = 0; for (int i = 0; i < text.length(); i++) if (text.charAt(i) == letter.charAt(0)) n++; return n; }
  }
  /** The table that does not change, in memory: Flink has no lookup source that is not outside. */
  public static class SideValue extends ScalarFunction { public String eval(Long key) { return "value " + key; } }

  static void declare(StreamExecutionEnvironment env, StreamTableEnvironment tables, String reads, long events, int parallelism, long rate, long begin) {
    for (String part : reads.replaceFirst("^-- reads ", "").split(";")) {
      String kind = part.trim().replaceFirst("\\(.*", "").trim();
      String[] columns = part.replaceFirst(".*\\(", "").replace(")", "").trim().split("[, ]+");
      LogicalType[] types = Arrays.stream(columns).map(Nexmark::type).toArray(LogicalType[]::new);
      Rows rows = new Rows(kind, columns, events, parallelism, rate, begin);
      TypeInformation<RowData> info = InternalTypeInfo.of(RowType.of(types, columns));
      DataStream<RowData> stream = env.fromSource(new DataGeneratorSource<>(rows, rows.rows, info), WatermarkStrategy.noWatermarks(), kind);
      Schema.Builder schema = Schema.newBuilder();
      for (String column : columns) schema.column(column, column.equals("expires") || column.equals("date_time") ? DataTypes.TIMESTAMP(3) : TEXTS.contains(column) ? DataTypes.STRING() : DataTypes.BIGINT());
      schema.columnByExpression("arrived", "PROCTIME()");
      if (Arrays.asList(columns).contains("date_time")) schema.watermark("date_time", "date_time - INTERVAL '4' SECOND");
      tables.createTemporaryView(kind, stream, schema.build());
    }
  }

  static long bytesBelow(Path directory) {
    try (Stream<Path> files = Files.walk(directory)) { return files.filter(Files::isRegularFile).mapToLong(f -> f.toFile().length()).sum(); }
    catch (IOException | UncheckedIOException gone) { return 0; }
  }
  static long peakMemoryKb() throws IOException {
    return Files.lines(Paths.get("/proc/self/status")).filter(l -> l.startsWith("VmHWM")).mapToLong(l -> Long.parseLong(l.replaceAll("\\D", ""))).findFirst().orElse(0);
  }

  public static void main(String[] a) throws Exception {
    if (a[0].equals("events")) { printEvents(a[1], Long.parseLong(a[2])); return; }
    long events = Long.parseLong(a[2]); int p = Integer.parseInt(a[3]);
    if (!a[4].equals("check")) { measure(a[0], a[1], events, p, a[4]); System.exit(0); }
    for (String name : a[1].split(",")) {
      try { writeAnswer(answer(a[0], name, events, p, Long.parseLong(a[6]), Long.parseLong(a[7]), ""), Paths.get(a[5], name + ".tsv").toString()); }
      catch (Exception e) { System.out.printf("flink-sql %s WRONG: %s%n", name, e); continue; }
      System.out.printf("flink-sql %s p=%d events=%d counted%n", name, p, events);
    }
    System.exit(0);
  }

  static Table answer(String directory, String name, long events, int p, long rate, long begin, String checkpoints) throws Exception {
    String[] parts = Files.readString(Paths.get(directory, name + ".sql")).split("\n", 2);
    Configuration conf = new Configuration();
    conf.setString("execution.checkpointing.interval", "1 s");
    conf.setString("pipeline.object-reuse", "true");
    conf.setString("table.local-time-zone", "UTC");
    if (!checkpoints.isEmpty()) { conf.setString("execution.checkpointing.storage", "filesystem"); conf.setString("execution.checkpointing.dir", "file://" + checkpoints); }
    StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(p, conf);
    StreamTableEnvironment tables = StreamTableEnvironment.create(env);
    tables.createTemporarySystemFunction("count_char", CountChar.class);
    tables.createTemporarySystemFunction("side_value", SideValue.class);
    declare(env, tables, parts[0], events, p, rate, begin);
    return tables.sqlQuery(parts[1]);
  }

  static void measure(String directory, String name, long events, int p, String checkpoints) throws Exception {
    Table answer = answer(directory, name, events, p, 100_000, 1_767_225_600_000L, checkpoints);
    long[] state = {0}; Path written = Paths.get(checkpoints);
    Thread watch = new Thread(() -> { while (true) { state[0] = Math.max(state[0], bytesBelow(written)); try { Thread.sleep(200); } catch (InterruptedException e) { return; } } });
    watch.setDaemon(true); watch.start();
    long began = System.currentTimeMillis();
    answer.insertInto(TableDescriptor.forConnector("blackhole").build()).execute().await();
    double net = (System.currentTimeMillis() - first) / 1e3;
    System.out.printf("flink-sql %s p=%d events=%d rate=%.4fM/s net=%.3fs start=%.2fs state=%.3fMB worker=%.0fMB counted%n", name, p, events, events / net / 1e6, net, (first - began) / 1e3,
      state[0] / 1e6, peakMemoryKb() / 1024.0);
  }

  /** A line for each row: the kind of change, then its values; times as milliseconds. */
  static void writeAnswer(Table answer, String file) throws Exception {
    try (CloseableIterator<Row> rows = answer.execute().collect(); PrintWriter out = new PrintWriter(file, StandardCharsets.UTF_8)) {
      out.println("op\t" + String.join("\t", answer.getResolvedSchema().getColumnNames()));
      while (rows.hasNext()) {
        Row row = rows.next();
        out.println(row.getKind().shortString() + "\t" + IntStream.range(0, row.getArity()).mapToObj(i -> shown(row.getField(i))).collect(Collectors.joining("\t")));
      }
    }
  }
  static String shown(Object value) {
    return value instanceof java.time.LocalDateTime ? "" + ((java.time.LocalDateTime) value).toInstant(java.time.ZoneOffset.UTC).toEpochMilli() : String.valueOf(value);
  }
  static void printEvents(String kind, long events) {
    Rows rows = new Rows(kind, COLUMNS.get(kind).split(" "), events, 1, 100_000, 1_767_225_600_000L);
    StringBuilder out = new StringBuilder();
    for (long i = 0; i < rows.rows; i++) {
      GenericRowData row = (GenericRowData) rows.row(i);
      out.append(IntStream.range(0, row.getArity()).mapToObj(f -> row.getField(f) instanceof TimestampData ? "" + ((TimestampData) row.getField(f)).getMillisecond() : "" + row.getField(f))
        .collect(Collectors.joining("|"))).append("\n");
    }
    System.out.print(out);
  }
}
