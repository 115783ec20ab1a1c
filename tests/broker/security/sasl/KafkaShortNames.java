// Applies rules of sasl.kerberos.principal.to.local.rules with Apache Kafka's own classes, for comparison with ours.
//
// Each line of standard input has, in base64 and separated by blanks, a principal and the rules. The answer is a line:
// the short name in base64 after "=", "-" if there is none, or "!" if a rule is malformed.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;

public class KafkaShortNames {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> texts = new ArrayList<>();
            for (String word : line.split(" "))
                texts.add(new String(Base64.getDecoder().decode(word), "UTF-8"));
            System.out.println(shortName(texts.get(0), texts.subList(1, texts.size())));
        }
    }

    private static String shortName(String principal, List<String> rules) throws Exception {
        KerberosShortNamer namer;
        try {
            namer = KerberosShortNamer.fromUnparsedRules("REALM.COM", rules);
        } catch (IllegalArgumentException error) {
            return "!";
        }
        try {
            String name = namer.shortName(KerberosName.parse(principal));
            return "=" + Base64.getEncoder().encodeToString(name.getBytes("UTF-8"));
        } catch (IOException | IllegalArgumentException | IndexOutOfBoundsException error) {
            return "-";
        }
    }
}
