// Reads and writes records with Apache Kafka's own classes, for comparison with ours.
//
// Lines "read TAB hex of batches" are answered with the records, lines "write TAB magic TAB codec TAB records" with the
// hex of a batch or message set. Records are separated by ";", their fields by ",": offset, timestamp, key, value, then
// the name and the value of each header, all bytes in hex, "-" for null. An error is answered with "! " and its text.
// Run as a single source file with kafka-clients on the class path.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.StringJoiner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Utils;

public class KafkaRecords {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            try {
                System.out.println(parts[0].equals("read") ? read(parts[1]) : write(parts[1], parts[2], parts[3]));
            } catch (RuntimeException error) {
                System.out.println("! " + error.toString().replace('\n', ' '));
            }
        }
    }

    private static String read(String batches) {
        StringJoiner records = new StringJoiner(";");
        MemoryRecords found = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(batches)));
        for (RecordBatch batch : found.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                records.add(text(record));
            }
        }
        return records.toString();
    }

    private static String text(Record record) {
        StringJoiner fields = new StringJoiner(",");
        fields.add(Long.toString(record.offset())).add(Long.toString(record.timestamp()));
        fields.add(hex(record.key())).add(hex(record.value()));
        for (Header header : record.headers()) {
            fields.add(HEX.formatHex(header.key().getBytes(StandardCharsets.UTF_8)));
            fields.add(header.value() == null ? "-" : HEX.formatHex(header.value()));
        }
        return fields.toString();
    }

    private static String write(String magic, String codec, String records) {
        List<String> all = List.of(records.split(";"));
        long base = Long.parseLong(all.get(0).split(",", 2)[0]);
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1024), Byte.parseByte(magic), Compression.of(codec).build(), TimestampType.CREATE_TIME, base);
        for (String record : all) {
            String[] fields = record.split(",", -1);
            List<Header> headers = new ArrayList<>();
            for (int i = 4; i < fields.length; i += 2)
                headers.add(new RecordHeader(new String(HEX.parseHex(fields[i]), StandardCharsets.UTF_8), bytes(fields[i + 1])));
            builder.appendWithOffset(Long.parseLong(fields[0]), Long.parseLong(fields[1]), bytes(fields[2]), bytes(fields[3]),
                headers.toArray(new Header[0]));
        }
        return HEX.formatHex(Utils.toArray(builder.build().buffer()));
    }

    private static String hex(ByteBuffer buffer) {
        return buffer == null ? "-" : HEX.formatHex(Utils.toNullableArray(buffer));
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : HEX.parseHex(text);
    }
}
