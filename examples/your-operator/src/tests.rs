//! Runs the operator on the embedded API server, and a web server for its pages.

use listwatch::{
    client::{Part, Patch},
    testing::TestServer,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use super::*;

/// Starts a web server that sends `hello`. Returns its URL, and a channel with an entry for each request.
async fn hello() -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (sender, requests) = mpsc::channel(10);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _request = stream.read(&mut [0; 4096]).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
            if stream.write_all(answer).await.is_err() || sender.send(()).await.is_err() {
                return;
            }
        }
    });
    (url, requests)
}

#[tokio::test]
async fn the_config_map_of_a_page_has_its_text_again_after_a_change() {
    let server = TestServer::start(&[include_str!("../crd.yaml")]).await;
    let (url, mut requests) = hello().await;
    let key = Key::namespaced("default", "motd");
    let (name, namespace) = (key.name.clone(), key.namespace.clone());
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let spec = PageSpec { url, every_seconds: 3600 };
    let page = Page { metadata, spec, status: Conditions::default() };
    server.client.create(&page).await.expect("a Page");
    let (sender, wakes) = mpsc::channel(1);
    // The first reconcile creates the ConfigMap, the second one writes the status. The wake makes a third one, which writes nothing.
    let all = async {
        requests.recv().await;
        requests.recv().await;
        sender.send(key.clone()).await.expect("a running controller");
        requests.recv().await;
    };
    let (writes, all) =
        tokio::join!(server.run(|setup| controller(&setup, wakes)), timeout(Duration::from_secs(300), all));
    assert_eq!(writes, ["POST configmaps/motd 201", "PATCH pages/motd/status 200"]);
    assert!(all.is_ok());

    let edit = Patch::Merge(json!({"data": {"page": null, "more": "text"}}));
    server.client.patch::<ConfigMap>(&key, Part::Object, &edit).await.expect("a ConfigMap");
    let start = async || server.run(|setup| controller(&setup, mpsc::channel(1).1)).await;
    assert_eq!(start().await, ["PATCH configmaps/motd 200"]);
    let map: ConfigMap = server.client.get(&key).await.expect("a ConfigMap");
    assert_eq!(map.data, BTreeMap::from([("page".to_owned(), "hello".to_owned())]));
    assert_eq!(start().await, [""; 0]);
}

/// A Page of an earlier version of the CRD, which allowed any number.
mod earlier {
    use super::{Conditions, Deserialize, ObjectMeta, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(super) struct Page {
        pub metadata: ObjectMeta,
        pub spec: serde_json::Value,
        #[serde(default)]
        pub status: Conditions,
    }

    listwatch::kind!(Page, "example.com", "v1", "pages");
}

#[tokio::test]
async fn a_page_that_does_not_decode_says_so_in_its_status() {
    let server = TestServer::start(&[&include_str!("../crd.yaml").replace(", minimum: 1", "")]).await;
    let key = Key::namespaced("default", "motd");
    let (name, namespace) = (key.name.clone(), key.namespace.clone());
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let spec = json!({"url": "http://motd.example.com/", "everySeconds": -1});
    let page = earlier::Page { metadata, spec, status: Conditions::default() };
    server.client.create(&page).await.expect("a Page");
    let writes = server.run(|setup| controller(&setup, mpsc::channel(1).1)).await;
    assert_eq!(writes, ["PATCH pages/motd/status 200"]);
    let page: earlier::Page = server.client.get(&key).await.expect("the Page");
    assert_eq!(page.status.conditions[0].reason, "InvalidSpec");
}
