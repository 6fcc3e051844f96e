// The official client of JavaScript: a list, writes, and an informer whose watches are cut. See ../install.

import { EventEmitter, on } from 'node:events';
import { CoreV1Api, KubeConfig, makeInformer } from '@kubernetes/client-node';

const namespace = 'default';
const labelSelector = 'for=javascript';

const config = new KubeConfig();
config.loadFromDefault();
const api = config.makeApiClient(CoreV1Api);

await api.createNamespacedConfigMap({
  namespace,
  body: { metadata: { name: 'javascript', labels: { for: 'javascript' } }, data: { change: '0' } },
});
const list = () => api.listNamespacedConfigMap({ namespace, labelSelector });
const names = (await list()).items.map((item) => item.metadata.name);
if (names.join() !== 'javascript') throw new Error(`listed ${names}`);

const emitter = new EventEmitter();
const events = on(emitter, 'event', { signal: AbortSignal.timeout(100_000) });
async function expect(event) {
  const seen = (await events.next()).value[0];
  if (seen !== event) throw new Error(`${seen} instead of ${event}`);
}

const informer = makeInformer(config, `/api/v1/namespaces/${namespace}/configmaps`, list, labelSelector);
for (const kind of ['add', 'update', 'delete']) {
  informer.on(kind, (item) => emitter.emit('event', `${kind} ${item.data.change}`));
}
// After an error, the informer stops, and the program has to start it again.
informer.on('error', (error) => {
  console.error(`javascript: ${error}`);
  informer.start();
});
await informer.start();
await expect('add 0');
for (const change of '12345') {
  const replaced = await api.readNamespacedConfigMap({ namespace, name: 'javascript' });
  await api.replaceNamespacedConfigMap({ namespace, name: 'javascript', body: { ...replaced, data: { change } } });
  await expect(`update ${change}`);
}
await api.deleteNamespacedConfigMap({ namespace, name: 'javascript' });
await expect('delete 5');
// The open watch would keep the process.
process.exit();
