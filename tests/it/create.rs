//! A new MyWebserver becomes a Deployment, a Service and a status, and that is all that is written.

use serde_json::json;

use crate::world::on_each;

const NEW: &str = "POST deployments 201
                   POST services 201
                   PATCH mywebservers/web/status 200";

#[tokio::test]
async fn a_new_object_costs_three_writes_and_a_converged_one_none() {
    on_each(async |world| {
        world.create_web("web", json!({"image": "nginx", "port": 8080, "replicas": 3})).await;
        world.wrote(NEW).await;
        let deployment = world.get("deployments/mws-web").await;
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "nginx");
        let service = world.get("services/mws-web").await;
        assert_eq!(service["spec"]["ports"][0]["port"], 8080);
        world.wrote("").await;
    })
    .await;
}
