import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigDef;

/** Prints what Apache Kafka says of its own configuration, one record to a line, fields separated by tabs. */
public class KafkaConfigs {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "definitions" -> {
                print("broker", brokerDefinition());
                Class<?> log = Class.forName("org.apache.kafka.storage.internals.log.LogConfig");
                print("topic", (ConfigDef) log.getMethod("configDefCopy").invoke(null));
            }
            case "dynamic" -> {
                Class<?> dynamic = Class.forName("org.apache.kafka.server.config.DynamicBrokerConfig");
                print((Map<?, ?>) dynamic.getMethod("dynamicConfigUpdateModes").invoke(null));
            }
            case "synonyms" -> {
                Class<?> synonyms = Class.forName("org.apache.kafka.server.config.ServerTopicConfigSynonyms");
                print((Map<?, ?>) synonyms.getField("TOPIC_CONFIG_SYNONYMS").get(null));
            }
            case "properties" -> readProperties();
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static ConfigDef brokerDefinition() throws Exception {
        try {
            Class<?> config = Class.forName("org.apache.kafka.server.config.AbstractKafkaConfig");
            return (ConfigDef) config.getField("CONFIG_DEF").get(null);
        } catch (NoSuchFieldException beforeVersion4) {
            return (ConfigDef) Class.forName("kafka.server.KafkaConfig").getMethod("configDef").invoke(null);
        }
    }

    static void print(String kind, ConfigDef definition) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            System.out.println(String.join("\t", kind, key.name, key.type.toString(), defaultOf(key),
                String.valueOf(key.validator).replaceAll("\\s+", " "), String.valueOf(key.internalConfig)));
        }
    }

    static String defaultOf(ConfigDef.ConfigKey key) {
        if (key.defaultValue == ConfigDef.NO_DEFAULT_VALUE) return "<required>";
        if (key.defaultValue instanceof Class<?> type) return type.getName();
        if (key.defaultValue instanceof List<?> list)
            return list.stream().map(String::valueOf).collect(Collectors.joining(","));
        return key.defaultValue == null ? "<null>" : key.defaultValue.toString();
    }

    static void print(Map<?, ?> map) {
        map.forEach((key, value) -> System.out.println(key + "\t" + value));
    }

    /** Every line of the input is a properties file in Base64; every line of the output its entries, or "!". */
    static void readProperties() throws Exception {
        for (String line : new String(System.in.readAllBytes(), StandardCharsets.US_ASCII).split("\n")) {
            Properties properties = new Properties();
            try {
                properties.load(new StringReader(decode(line)));
            } catch (IllegalArgumentException malformed) {
                System.out.println("!");
                continue;
            }
            System.out.println(properties.entrySet().stream()
                .map(entry -> encode((String) entry.getKey()) + ":" + encode((String) entry.getValue()))
                .collect(Collectors.joining(",")));
        }
    }

    // UTF-16, so that halves of a pair that are no characters survive.
    static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_16BE);
    }

    static String encode(String text) {
        byte[] bytes = new byte[text.length() * 2];
        for (int i = 0; i < text.length(); i++) {
            bytes[2 * i] = (byte) (text.charAt(i) >> 8);
            bytes[2 * i + 1] = (byte) text.charAt(i);
        }
        return Base64.getEncoder().encodeToString(bytes);
    }
}
