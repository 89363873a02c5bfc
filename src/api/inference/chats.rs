//! Tokenizers and chat templates, read when a model is first asked for text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;

use crate::api::state::App;
use crate::chat::Chat;
use crate::engine::handle::ModelInfo;
use crate::error::Result;

/// By the served name of the model.
#[derive(Default)]
pub struct Chats(Mutex<HashMap<String, Arc<OnceCell<Arc<Chat>>>>>);

impl App {
    /// What text in and out of this model needs; read once, and again after a failure.
    pub async fn chat(&self, model: &ModelInfo) -> Result<Arc<Chat>> {
        let cell = {
            let mut all = self.chats().0.lock().expect("no code panics while it holds this map");
            all.entry(model.name.clone()).or_default().clone()
        };
        let load = async || {
            let (name, dir) = (model.name.clone(), model.dir.clone());
            self.heavy(move || Chat::load(&name, &dir)).await?.map(Arc::new)
        };
        cell.get_or_try_init(load).await.cloned()
    }
}
