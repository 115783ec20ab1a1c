import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Scanner;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after the other in one JVM, since starting one for each is slow.
 * A request is a line of base64 words: standard input, the class, its arguments. The answer is a line: the exit code,
 * then standard output and standard error in base64.
 */
public class KafkaTools {
    /** Ends a tool. Some catch it and exit again, with another code: the first counts. */
    private static class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** Where a tool writes. Scala keeps the stream that it finds first, so that one stays. */
    private static class Output extends OutputStream {
        private final ByteArrayOutputStream written = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int b) {
            written.write(b);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int count) {
            written.write(bytes, from, count);
        }

        synchronized String take() {
            String text = Base64.getEncoder().encodeToString(written.toByteArray());
            written.reset();
            return text;
        }
    }

    private static volatile Integer exitCode;

    private static void exit(int code) {
        if (exitCode == null)
            exitCode = code;
        throw new Exited();
    }

    public static void main(String[] args) {
        PrintStream answers = System.out;
        List<Runnable> hooks = new ArrayList<>();
        Output out = new Output(), err = new Output();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Scanner requests = new Scanner(System.in);
        while (requests.hasNextLine()) {
            String[] words = requests.nextLine().split(" ", -1);
            for (int i = 0; i < words.length; i++)
                words[i] = new String(Base64.getDecoder().decode(words[i]));
            System.setIn(new ByteArrayInputStream(words[0].getBytes()));
            exitCode = null;
            int code = run(words[1], Arrays.copyOfRange(words, 2, words.length));
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.out.flush();
            System.err.flush();
            answers.println(code + " " + out.take() + " " + err.take());
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(String name, String[] args) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (ReflectiveOperationException e) {
            if (exitCode == null) {
                e.printStackTrace();
                return 1;
            }
        }
        return exitCode == null ? 0 : exitCode;
    }
}
