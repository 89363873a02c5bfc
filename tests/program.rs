//! `tinderbox serve` and other commands in processes of their own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tinderbox_client::{ClientOptions, RestClient, ServiceClient};

/// How long a start may take on a busy machine.
const READY: Duration = Duration::from_secs(120);
/// The served model.
pub const MODEL: &str = "demo/adder";
pub const KEY: &str = "tml-test";

/// A server of the tiny demo model; killed when it is dropped.
pub struct Server {
    pub url: String,
    pub port: u16,
    process: Child,
}

/// The program, without settings of the one who tests.
pub fn tinderbox() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinderbox"));
    command.env_clear().env("HOME", "/nowhere").stdin(Stdio::null());
    command
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// With the model in `dir`, which is made there, as `name`, and the key.
    pub async fn start(dir: &Path, data: &Path, name: &str) -> Self {
        Self::start_on(free_port(), dir, data, name).await
    }

    pub async fn start_on(port: u16, dir: &Path, data: &Path, name: &str) -> Self {
        let model = dir.join("model");
        if !model.exists() {
            tinderbox::recipes::demo_model::write(&model, 1).unwrap();
        }
        let process = tinderbox()
            .args(["serve", "--api-key", KEY, "--port", &port.to_string()])
            .args(["--model", &format!("{name}={}", model.display())])
            .arg("--data-dir")
            .arg(data)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { url: format!("http://127.0.0.1:{port}"), port, process };
        let options = ClientOptions { retry_for: Some(Duration::ZERO), ..ClientOptions::new(&server.url, KEY) };
        let (rest, start) = (RestClient::connect_with(&options).unwrap(), Instant::now());
        while rest.healthz().await.is_err() {
            assert!(server.process.try_wait().unwrap().is_none(), "the server has ended");
            assert!(start.elapsed() < READY, "the server is not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server
    }

    pub fn rest(&self) -> RestClient {
        RestClient::connect(&self.url, KEY).unwrap()
    }

    pub async fn service(&self) -> ServiceClient {
        ServiceClient::connect(ClientOptions::new(&self.url, KEY)).await.unwrap()
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command's output, which must have come within its time; errors with what it said.
pub async fn ran(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap()
}
