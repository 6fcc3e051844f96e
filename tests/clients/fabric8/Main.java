// fabric8, the Java client of the Java Operator SDK: a list, writes, and an informer whose watches, WebSockets, are cut. See ../install.

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

class Main {
  static final LinkedBlockingQueue<String> events = new LinkedBlockingQueue<>();

  /** The next event is this one. */
  static void expect(String event) throws InterruptedException {
    String seen = events.poll(1, TimeUnit.MINUTES);
    if (!event.equals(seen)) throw new AssertionError(seen + " instead of " + event);
  }

  static void add(String kind, ConfigMap object) {
    events.add(kind + " " + object.getData().get("change"));
  }

  public static void main(String[] args) throws Exception {
    // On a busy machine, the first connection and its answer can take longer than the 10 s of the defaults.
    try (var client = new KubernetesClientBuilder().editOrNewConfig().withConnectionTimeout(60_000).withRequestTimeout(60_000).endConfig().build()) {
      var api = client.configMaps().inNamespace("default");
      var labels = Map.of("for", "fabric8");
      var object = new ConfigMapBuilder().withNewMetadata().withName("fabric8").withLabels(labels).endMetadata();
      api.resource(object.addToData("change", "0").build()).create();
      var names = api.withLabels(labels).list().getItems().stream().map(item -> item.getMetadata().getName()).toList();
      if (!names.toString().equals("[fabric8]")) throw new AssertionError("listed " + names);

      var informer = api.withLabels(labels).inform(new ResourceEventHandler<ConfigMap>() {
        public void onAdd(ConfigMap added) {
          add("add", added);
        }
        public void onUpdate(ConfigMap before, ConfigMap updated) {
          add("update", updated);
        }
        public void onDelete(ConfigMap deleted, boolean isStale) {
          add("delete", deleted);
        }
      });
      expect("add 0");
      for (String change : "1 2 3 4 5".split(" ")) {
        api.withName("fabric8").edit(found -> new ConfigMapBuilder(found).addToData("change", change).build());
        expect("update " + change);
      }
      api.withName("fabric8").delete();
      expect("delete 5");
      informer.close();
    }
  }
}
