// Encodes messages with Apache Kafka's own classes, for comparison with ours.
//
// Reads lines of "class TAB version TAB json" and answers each with the bytes in hex, or with "! " and the error.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class KafkaEncoder {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 3);
            try {
                System.out.println(encode(parts[0], Short.parseShort(parts[1]), mapper.readTree(parts[2])));
            } catch (ReflectiveOperationException | RuntimeException error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                System.out.println("! " + cause.toString().replace('\n', ' '));
            }
        }
    }

    private static String encode(String className, short version, JsonNode json) throws ReflectiveOperationException {
        Class<?> converter = Class.forName(className + "JsonConverter");
        Message message = (Message) converter.getMethod("read", JsonNode.class, short.class).invoke(null, json, version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }
}
