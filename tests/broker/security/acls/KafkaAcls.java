import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/**
 * Asks Apache Kafka's StandardAuthorizer. Lines of input, fields separated by tabs:
 *
 * config  super.users  allow.everyone     a new authorizer
 * acl     type pattern name principal host operation permission
 * may     principal host operation type name        prints true or false
 * any     principal host operation type             prints true or false
 * select  type pattern name principal host operation permission   prints the matching ACLs; a dash is null
 */
public class KafkaAcls {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        StandardAuthorizer authorizer = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "config" -> {
                    acls = new HashMap<>();
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of("super.users", f[1], "allow.everyone.if.no.acl.found", f[2]));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.completeInitialLoad();
                }
                case "acl" -> acls.put(Uuid.randomUuid(), StandardAcl.fromAclBinding(binding(f)));
                case "load" -> authorizer.loadSnapshot(acls);
                case "may" -> {
                    ResourcePattern resource =
                        new ResourcePattern(ResourceType.valueOf(f[4]), f[5], PatternType.LITERAL);
                    Action action = new Action(AclOperation.valueOf(f[3]), resource, 1, false, false);
                    out.append(authorizer.authorize(context(f), List.of(action)).get(0).name()).append('\n');
                }
                case "any" -> out.append(authorizer.authorizeByResourceType(
                    context(f), AclOperation.valueOf(f[3]), ResourceType.valueOf(f[4])).name()).append('\n');
                case "select" -> {
                    TreeSet<String> found = new TreeSet<>();
                    for (AclBinding acl : authorizer.acls(filter(f))) {
                        found.add(text(acl));
                    }
                    out.append(String.join("|", found)).append('\n');
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.print(out);
    }

    static AclBinding binding(String[] f) {
        return new AclBinding(
            new ResourcePattern(ResourceType.valueOf(f[1]), f[3], PatternType.valueOf(f[2])),
            new AccessControlEntry(f[4], f[5], AclOperation.valueOf(f[6]), AclPermissionType.valueOf(f[7])));
    }

    static AclBindingFilter filter(String[] f) {
        return new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.valueOf(f[1]), nullable(f[3]), PatternType.valueOf(f[2])),
            new AccessControlEntryFilter(
                nullable(f[4]), nullable(f[5]), AclOperation.valueOf(f[6]), AclPermissionType.valueOf(f[7])));
    }

    static String nullable(String text) {
        return text.equals("-") ? null : text;
    }

    static String text(AclBinding acl) {
        return String.join(",", acl.pattern().resourceType().name(), acl.pattern().patternType().name(),
            acl.pattern().name(), acl.entry().principal(), acl.entry().host(), acl.entry().operation().name(),
            acl.entry().permissionType().name());
    }

    static AuthorizableRequestContext context(String[] f) throws Exception {
        KafkaPrincipal principal = SecurityUtils.parseKafkaPrincipal(f[1]);
        InetAddress address = InetAddress.getByName(f[2]);
        return new AuthorizableRequestContext() {
            @Override public String listenerName() {
                return "PLAINTEXT";
            }

            @Override public SecurityProtocol securityProtocol() {
                return SecurityProtocol.PLAINTEXT;
            }

            @Override public KafkaPrincipal principal() {
                return principal;
            }

            @Override public InetAddress clientAddress() {
                return address;
            }

            @Override public int requestType() {
                return 0;
            }

            @Override public int requestVersion() {
                return 0;
            }

            @Override public String clientId() {
                return "test";
            }

            @Override public int correlationId() {
                return 1;
            }
        };
    }
}
