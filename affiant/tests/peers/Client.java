// One job by java.net.http.HttpClient. Java reads no proxy from the environment, so this does.
//
// usage: java -Djdk.http.auth.tunneling.disabledSchemes= Client.java VERSION BASE FILE NAME STEP...

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.net.Authenticator;
import java.net.InetSocketAddress;
import java.net.PasswordAuthentication;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.CertificateFactory;
import java.util.HexFormat;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

class Client {
    static final URI PROXY = URI.create(System.getenv("https_proxy"));

    static SSLContext trust() throws Exception {
        KeyStore roots = KeyStore.getInstance(KeyStore.getDefaultType());
        roots.load(null);
        int number = 0;
        try (FileInputStream file = new FileInputStream(System.getenv("SSL_CERT_FILE"))) {
            for (var root : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                roots.setCertificateEntry("root" + number++, root);
            }
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(roots);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    static class Identity extends Authenticator {
        @Override
        protected PasswordAuthentication getPasswordAuthentication() {
            String[] pair = PROXY.getUserInfo().split(":", 2);
            return new PasswordAuthentication(pair[0], pair[1].toCharArray());
        }
    }

    public static void main(String[] arguments) throws Exception {
        String base = arguments[1], name = arguments[3];
        URI stored = URI.create(base + "/files/" + name);
        HttpClient client = HttpClient.newBuilder()
            .version(HttpClient.Version.valueOf(arguments[0]))
            .proxy(ProxySelector.of(new InetSocketAddress(PROXY.getHost(), PROXY.getPort())))
            .authenticator(new Identity())
            .sslContext(trust())
            .build();
        for (int at = 4; at < arguments.length; at++) {
            if (arguments[at].equals("hello")) {
                var request = HttpRequest.newBuilder(URI.create(base + "/hello?by=java")).build();
                var answer = client.send(request, BodyHandlers.ofString());
                System.out.println("hello " + answer.statusCode() + " " + answer.body());
            } else if (arguments[at].equals("files")) {
                var content = BodyPublishers.ofFile(Path.of(arguments[2]));
                var put = HttpRequest.newBuilder(stored).PUT(content).build();
                var done = client.send(put, BodyHandlers.discarding());
                System.out.println("put " + done.statusCode());
                var get = HttpRequest.newBuilder(stored).build();
                var answer = client.send(get, BodyHandlers.ofByteArray());
                var digest = MessageDigest.getInstance("SHA-256").digest(answer.body());
                System.out.println(
                    "get " + answer.statusCode() + " " + HexFormat.of().formatHex(digest));
            } else {
                events(client, base, name);
            }
        }
    }

    static void events(HttpClient client, String base, String name) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(base + "/sse?id=" + name)).build();
        var answer = client.send(request, BodyHandlers.ofInputStream());
        var lines = new BufferedReader(new InputStreamReader(answer.body()));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.isEmpty()) {
                continue;
            }
            String number = line.substring("data: ".length());
            URI ack = URI.create(base + "/ack?id=" + name + "&n=" + number);
            var post = HttpRequest.newBuilder(ack).POST(BodyPublishers.noBody()).build();
            client.send(post, BodyHandlers.discarding());
            System.out.println("event " + number);
        }
    }
}
