//! A TCP proxy between the operator and the API server that simulates a bad network, below TLS.
//!
//! ```text
//!   operator ─► 127.0.0.1:PORT ─ up ───► pump ─► API server
//!                              ◄ down ── pump ◄─
//! ```
//!
//! Each direction of each connection can be slowed, forwarded byte by byte, or stalled. A stalled direction is no
//! longer read, and both sockets stay open, so each side sees a silent peer whose kernel still answers. With enough
//! permissions, the proxy can also have the kernel drop all packets, without acknowledging any.

use std::{
    io,
    net::SocketAddr,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use listwatch_control_plane::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// How one direction of a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Unchanged.
    Open,
    /// Each piece waits for this long.
    Delayed(Duration),
    /// In pieces of one byte each.
    ByteByByte,
    /// Nothing is forwarded, and the sockets stay open.
    Stalled,
}

/// A proxy in front of one API server. Dropped: all its connections are cut.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Vec<Connection>>,
    /// How new connections behave.
    new: Mutex<Flows>,
}

#[derive(Clone, Copy)]
struct Flows {
    up: Flow,
    down: Flow,
}

impl Default for Flows {
    fn default() -> Flows {
        Flows { up: Flow::Open, down: Flow::Open }
    }
}

struct Connection {
    flows: watch::Sender<Flows>,
    /// Bytes in both directions, since the last reset of the count.
    carried: Arc<AtomicUsize>,
    pump: AbortHandle,
}

impl Connection {
    fn stall(&self) {
        self.flows.send_replace(Flows { up: Flow::Stalled, down: Flow::Stalled });
    }
}

impl Proxy {
    /// A proxy to the server of this URL.
    pub async fn start(server: &str) -> Proxy {
        let server = server.strip_prefix("https://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server, Arc::clone(&shared)));
        Proxy { address, shared, _tasks: tasks }
    }

    /// The URL of the proxy.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Sets the behaviour of all connections, old and new.
    pub fn set(&self, up: Flow, down: Flow) {
        let flows = Flows { up, down };
        *self.shared.new.lock().unwrap() = flows;
        for connection in &*self.shared.connections.lock().unwrap() {
            connection.flows.send_replace(flows);
        }
    }

    /// Stalls only the open connection with this number. Returns `false` if there are fewer connections.
    pub fn stall(&self, number: usize) -> bool {
        let connections = self.shared.connections.lock().unwrap();
        let mut open = connections.iter().filter(|connection| !connection.pump.is_finished());
        let Some(connection) = open.nth(number) else { return false };
        connection.stall();
        true
    }

    /// Stalls only the connection that carries the data that `sends` causes, at least this many bytes.
    pub async fn stall_connection_of(&self, bytes: usize, sends: impl Future) {
        self.with_connection_of(bytes, sends, Connection::stall).await;
    }

    /// Cuts only the connection that carries the data that `sends` causes.
    pub async fn cut_connection_of(&self, bytes: usize, sends: impl Future) {
        self.with_connection_of(bytes, sends, |connection| connection.pump.abort()).await;
    }

    async fn with_connection_of(&self, bytes: usize, sends: impl Future, act: fn(&Connection)) {
        for connection in &*self.shared.connections.lock().unwrap() {
            connection.carried.store(0, Ordering::Relaxed);
        }
        sends.await;
        eventually("a connection with these bytes", async || {
            let connections = self.shared.connections.lock().unwrap();
            let carries = |connection: &&Connection| connection.carried.load(Ordering::Relaxed) >= bytes;
            connections.iter().find(carries).map(act)
        })
        .await;
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            connection.pump.abort();
        }
    }

    /// Drops every packet from and to this proxy, until the returned value is dropped. `None`: this process may not use
    /// `nft`.
    pub fn drop_packets(&self) -> Option<PacketsDropped> {
        let port = self.address.port();
        let table = format!("inet listwatch_test_{port}");
        let rules = format!(
            "table {table} {{ chain input {{ type filter hook input priority 0; \
             tcp dport {port} drop; tcp sport {port} drop; }}; }}"
        );
        let nft = Command::new("nft").arg(rules).stderr(Stdio::null()).status();
        nft.is_ok_and(|status| status.success()).then(|| PacketsDropped { table })
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.iter().filter(|connection| !connection.pump.is_finished()).count()
    }
}

/// A rule in the kernel. Dropped: removed.
pub struct PacketsDropped {
    table: String,
}

impl Drop for PacketsDropped {
    fn drop(&mut self) {
        let _ = Command::new("nft").arg(format!("delete table {}", self.table)).status();
    }
}

/// Accepts connections. Runs until dropped, which ends all connections.
async fn accept(listener: TcpListener, server: String, shared: Arc<Shared>) {
    let mut pumps = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (flows, receiver) = watch::channel(*shared.new.lock().unwrap());
        let (server, carried) = (server.clone(), Arc::<AtomicUsize>::default());
        let counter = Arc::clone(&carried);
        // Both sides see the end, whatever its reason.
        let pump = pumps.spawn(async move { drop(connect(client, &server, receiver, &counter).await) });
        shared.connections.lock().unwrap().push(Connection { flows, carried, pump });
        while pumps.try_join_next().is_some() {}
    }
}

/// One connection, until one side ends it.
async fn connect(
    client: TcpStream,
    server: &str,
    flows: watch::Receiver<Flows>,
    carried: &AtomicUsize,
) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = pump(from_client, to_server, flows.clone(), |flows| flows.up, carried) => ended,
        ended = pump(from_server, to_client, flows, |flows| flows.down, carried) => ended,
    }
}

/// One direction of a connection, until its source ends.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut flows: watch::Receiver<Flows>,
    way: fn(&Flows) -> Flow,
    carried: &AtomicUsize,
) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        carried.fetch_add(read, Ordering::Relaxed);
        // Data that were read just before the stall also wait, as if they were still on the wire.
        let flow = flows.wait_for(|flows| way(flows) != Flow::Stalled).await.map(|flows| way(&flows));
        match flow.map_err(io::Error::other)? {
            Flow::Open | Flow::Stalled => to.write_all(&buffer[..read]).await?,
            Flow::Delayed(time) => {
                tokio::time::sleep(time).await;
                to.write_all(&buffer[..read]).await?;
            }
            Flow::ByteByByte => {
                for byte in &buffer[..read] {
                    to.write_all(std::slice::from_ref(byte)).await?;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
