//! Runs the operator on the embedded API server, and a web server for its pages.

use listwatch::{
    client::{Part, Patch},
    resource::Key,
    testing::TestServer,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// Starts a web server that sends another text each time: `text 1`. Returns its URL.
async fn texts() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        for number in 1.. {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _request = stream.read(&mut [0; 4096]).await;
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\ntext {number}");
            stream.write_all(answer.as_bytes()).await.expect("an answer");
        }
    });
    url
}

#[tokio::test]
async fn the_config_map_of_a_page_has_its_text_again_after_a_change() {
    let server = TestServer::start(&[include_str!("../crd.yaml")]).await;
    let key = Key::namespaced("default", "motd");
    let (name, namespace) = (key.name.clone(), key.namespace.clone());
    let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let spec = PageSpec { url: texts().await, every_seconds: 3600 };
    let page = Page { metadata, spec, status: Conditions::default() };
    server.client.create(&page).await.expect("a Page");
    let start = async || server.run(controller).await;
    // The first reconcile creates the ConfigMap, the second one writes the status. Both have the text of one request.
    assert_eq!(start().await, ["POST configmaps/motd 201", "PATCH pages/motd/status 200"]);

    let edit = Patch::Merge(json!({"data": {"page": null, "more": "text"}}));
    server.client.patch::<ConfigMap>(&key, Part::Object, &edit).await.expect("a ConfigMap");
    assert_eq!(start().await, ["PATCH configmaps/motd 200"]);
    let map: ConfigMap = server.client.get(&key).await.expect("a ConfigMap");
    assert_eq!(map.data, BTreeMap::from([("page".to_owned(), "text 2".to_owned())]));
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
    let writes = server.run(controller).await;
    assert_eq!(writes, ["PATCH pages/motd/status 200"]);
    let page: earlier::Page = server.client.get(&key).await.expect("the Page");
    assert_eq!(page.status.conditions[0].reason, "InvalidSpec");
}
