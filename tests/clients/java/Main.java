// The official client of Java: a list, writes, and an informer whose watches are cut. See ../install.

import io.kubernetes.client.custom.V1Patch;
import io.kubernetes.client.informer.ResourceEventHandler;
import io.kubernetes.client.informer.SharedInformerFactory;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.openapi.models.V1ConfigMapList;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.util.ClientBuilder;
import io.kubernetes.client.util.CallGeneratorParams;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

class Main {
  static final String NAMESPACE = "default", SELECTOR = "for=java";
  static final LinkedBlockingQueue<String> events = new LinkedBlockingQueue<>();

  /** The next event is this one. */
  static void expect(String event) throws InterruptedException {
    String seen = events.poll(1, TimeUnit.MINUTES);
    if (!event.equals(seen)) throw new AssertionError(seen + " instead of " + event);
  }

  public static void main(String[] args) throws Exception {
    // On a busy machine, the first connection can take longer than the 10 s of the default.
    var client = ClientBuilder.standard().build().setConnectTimeout(60_000);
    var api = new CoreV1Api(client);

    var metadata = new V1ObjectMeta().name("java").labels(Map.of("for", "java"));
    api.createNamespacedConfigMap(NAMESPACE, new V1ConfigMap().metadata(metadata).data(Map.of("change", "0"))).execute();
    var names = api.listNamespacedConfigMap(NAMESPACE).labelSelector(SELECTOR).execute().getItems().stream()
        .map(item -> item.getMetadata().getName()).toList();
    if (!names.toString().equals("[java]")) throw new AssertionError("listed " + names);

    var factory = new SharedInformerFactory(client);
    var informer = factory.sharedIndexInformerFor(
        (CallGeneratorParams params) -> api.listNamespacedConfigMap(NAMESPACE).labelSelector(SELECTOR)
            .resourceVersion(params.resourceVersion).timeoutSeconds(params.timeoutSeconds).watch(params.watch)
            .buildCall(null),
        V1ConfigMap.class, V1ConfigMapList.class);
    informer.addEventHandler(new ResourceEventHandler<V1ConfigMap>() {
      public void onAdd(V1ConfigMap added) {
        events.add("add " + added.getData().get("change"));
      }
      public void onUpdate(V1ConfigMap before, V1ConfigMap updated) {
        events.add("update " + updated.getData().get("change"));
      }
      public void onDelete(V1ConfigMap deleted, boolean isStale) {
        events.add("delete " + deleted.getData().get("change"));
      }
    });
    factory.startAllRegisteredInformers();
    expect("add 0");
    for (String change : "1 2 3 4 5".split(" ")) {
      var object = api.readNamespacedConfigMap("java", NAMESPACE).execute().data(Map.of("change", change));
      api.replaceNamespacedConfigMap("java", NAMESPACE, object).execute();
      expect("update " + change);
    }
    api.deleteNamespacedConfigMap("java", NAMESPACE).execute();
    expect("delete 5");
    factory.stopAllRegisteredInformers(true);
    // Threads of the HTTP client would keep the process for a minute.
    System.exit(0);
  }
}
