"""Rows per second of PyFlink through a `KeyedProcessFunction`: `user_code.py WORKERS ROWS keyed KEYS`.

The work of `benchmarks/user_code.py`. A sequence of Flink makes the numbers of the rows, and Python the rows, in front of
the exchange; a checkpoint every second, and a sink of text files, by which the answer is checked. `net` is from the
start of the job to its end, with the start of its Python workers.
"""
import os, sys, tempfile, time

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.common.serialization import Encoder
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor

workers, rows, kind, keys = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
MASK = (1 << 64) - 1
assert kind == "keyed", kind


def record(number):
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    return (mixed >> 40) % keys, float(mixed & 1023), number // 1000


class Totals(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", Types.TUPLE([Types.LONG(), Types.DOUBLE()])))

    def process_element(self, row, context):
        count, total = self.total.value() or (0, 0.0)
        count, total = count + 1, total + row[1]
        self.total.update((count, total))
        yield row[0], count, total


configuration = Configuration()
configuration.set_string("python.executable", sys.executable)
configuration.set_string("python.client.executable", sys.executable)
configuration.set_string("execution.checkpointing.interval", "1 s")
environment = StreamExecutionEnvironment.get_execution_environment(configuration)
environment.set_parallelism(workers)
RECORD = Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.LONG()])
numbers = environment.from_source(NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
totals = (
    numbers.map(record, output_type=RECORD)
    .key_by(lambda row: row[0], key_type=Types.LONG())
    .process(Totals(), output_type=Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE()]))
)
with tempfile.TemporaryDirectory() as root:
    # Lines of text, which the check reads: the newest total of a key is the one with the most rows.
    sink = FileSink.for_row_format(root, Encoder.simple_string_encoder()).build()
    totals.map(lambda row: "%d %d %r" % row, output_type=Types.STRING()).sink_to(sink)
    began = time.time()
    environment.execute("user code")
    net = time.time() - began
    newest = {}
    for where, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(where, name)) as file:
                for text in file:
                    key, count, total = text.split()
                    if int(count) > newest.get(key, (0, 0.0))[0]:
                        newest[key] = int(count), float(total)
found = sum(each[0] for each in newest.values()), sum(each[1] for each in newest.values())
right = found == (rows, sum(record(number)[1] for number in range(rows)))
print(f"flink-python {kind} p={workers} keys={keys} rows={rows} rate={rows / net / 1e6:.4f}M/s net={net:.3f}s {'verified' if right else f'WRONG: {found}'}")
sys.exit(not right)
