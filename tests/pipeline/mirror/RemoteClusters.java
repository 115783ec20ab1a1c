import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What MirrorMaker 2's client finds on a cluster: arguments are its address, an alias of a source, and a group. */
public class RemoteClusters {
    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        try (MirrorClient client = new MirrorClient(config)) {
            System.out.println("upstream " + new TreeSet<>(client.upstreamClusters()));
            System.out.println("hops " + client.replicationHops(args[1]));
            System.out.println("remote " + new TreeSet<>(client.remoteTopics(args[1])));
        }
        var offsets = RemoteClusterUtils.translateOffsets(config, args[1], args[2], Duration.ofSeconds(30));
        var sorted = new TreeMap<String, String>();
        offsets.forEach((place, offset) -> sorted.put(place.toString(), offset.offset() + " " + offset.metadata()));
        System.out.println("offsets " + sorted);
    }
}
