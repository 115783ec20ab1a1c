// Reads JAAS lines with Apache Kafka's own classes, for comparison with ours.
//
// Each line of standard input is a JAAS line in base64. The answer is a line: the class, the flag and the options
// (names and values in base64, sorted by name), or "!".

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

public class KafkaJaas {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String text = new String(Base64.getDecoder().decode(line), "UTF-8");
            try {
                System.out.println(read(text));
            } catch (RuntimeException error) {
                System.out.println("!");
            }
        }
    }

    private static String read(String text) throws Exception {
        Map<String, Object> configs = Map.of("sasl.jaas.config", new Password(text));
        AppConfigurationEntry entry = JaasContext.loadClientContext(configs).configurationEntries().get(0);
        String flag = entry.getControlFlag().toString().replace("LoginModuleControlFlag: ", "");
        StringBuilder answer = new StringBuilder(entry.getLoginModuleName() + " " + flag);
        for (Map.Entry<String, ?> option : new TreeMap<String, Object>(entry.getOptions()).entrySet())
            answer.append(' ').append(encoded(option.getKey())).append('=').append(encoded((String) option.getValue()));
        return answer.toString();
    }

    private static String encoded(String text) throws Exception {
        return Base64.getEncoder().encodeToString(text.getBytes("UTF-8"));
    }
}
