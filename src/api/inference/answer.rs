//! One sample's tokens as text: incomplete characters wait, stop strings cut, thoughts and calls are told apart.

use std::sync::Arc;

use crate::chat::Chat;
use crate::chat::output::{Output, Part, Reading};
use crate::chat::stop_text::StopText;
use crate::chat::tool_calls::Call;
use crate::command::{Sequence, StopReason, TokenEvent, TopK};
use crate::tokenizer::stream::TextStream;

/// JSON has no infinity.
const LOWEST: f32 = -9999.0;

/// A generated token, as the engine drew it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub id: u32,
    pub logprob: f32,
    pub topk: Option<TopK>,
}

impl From<&TokenEvent> for Token {
    fn from(event: &TokenEvent) -> Self {
        Self { id: event.token, logprob: event.logprob, topk: event.topk.clone() }
    }
}

/// The tokens of a finished sample.
pub fn tokens_of(sequence: &Sequence) -> impl Iterator<Item = Token> + '_ {
    sequence.tokens.iter().zip(&sequence.logprobs).enumerate().map(|(i, (&id, &logprob))| Token {
        id,
        logprob,
        topk: sequence.topk.as_ref().map(|rows| rows[i].clone()),
    })
}

/// A logprob as JSON can hold it.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() { LOWEST } else { logprob.max(LOWEST) }
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model ended its turn.
    Turn,
    /// A stop string, which is not part of the text.
    StopString(String),
    /// `max_tokens` or the context was reached.
    Length,
    /// The model ended its turn with calls of tools.
    Calls,
}

/// Tokens go in, parts come out; the same whether it is told while it grows or at the end.
pub struct Answer {
    chat: Arc<Chat>,
    text: TextStream,
    stop: StopText,
    output: Output,
    called: bool,
}

impl Answer {
    pub fn new(chat: Arc<Chat>, stop: Vec<String>, reading: Reading) -> Self {
        let (text, stop, output) = (TextStream::default(), StopText::new(stop), Output::new(reading));
        Self { chat, text, stop, output, called: false }
    }

    pub fn push(&mut self, token: u32) -> Vec<Part> {
        let text = self.text.push(&self.chat.tokenizer, token);
        let text = self.stop.push(&text);
        let parts = self.output.push(&text);
        self.called |= calls(&parts);
        parts
    }

    pub fn finish(mut self, reason: StopReason) -> (Vec<Part>, Ending) {
        let open = self.text.finish();
        let mut text = self.stop.push(&open);
        let (held, found) = self.stop.finish();
        text.push_str(&held);
        let mut parts = self.output.push(&text);
        parts.extend(self.output.finish());
        let called = self.called || calls(&parts);
        let ending = match (found, reason) {
            (Some(stop), _) => Ending::StopString(stop),
            (None, StopReason::Length) => Ending::Length,
            (None, StopReason::Stop) if called => Ending::Calls,
            (None, StopReason::Stop) => Ending::Turn,
        };
        (parts, ending)
    }

    /// All of a finished sample.
    pub fn whole(mut self, sequence: &Sequence) -> Whole {
        let mut whole = Whole::default();
        for &token in &sequence.tokens {
            self.push(token).into_iter().for_each(|part| whole.add(part));
        }
        let (parts, ending) = self.finish(sequence.stop_reason);
        parts.into_iter().for_each(|part| whole.add(part));
        whole.ending = Some(ending);
        whole
    }
}

/// An answer that is told while it grows.
pub struct Growing(Option<Answer>);

impl Growing {
    pub fn new(answer: Answer) -> Self {
        Self(Some(answer))
    }

    /// The parts that this token makes certain and, if it is the last, how the answer ended; `None` behind its end.
    pub fn step(&mut self, token: &TokenEvent) -> Option<(Vec<Part>, Option<Ending>)> {
        let mut answer = self.0.take()?;
        let mut parts = answer.push(token.token);
        let Some(reason) = token.stop_reason else {
            self.0 = Some(answer);
            return Some((parts, None));
        };
        let (rest, ending) = answer.finish(reason);
        parts.extend(rest);
        Some((parts, Some(ending)))
    }
}

fn calls(parts: &[Part]) -> bool {
    parts.iter().any(|p| matches!(p, Part::Call(_)))
}

/// An answer with its parts joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    /// Set when it has ended.
    pub ending: Option<Ending>,
}

impl Whole {
    fn add(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(&text),
            Part::Content(text) => self.content.push_str(&text),
            Part::Call(call) => self.calls.push(call),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::inference::testing;
    use crate::chat::tool_calls::Format;
    use crate::tokenizer::fixtures::byte_level;

    fn whole(text: &str, stop: &[&str], reason: StopReason) -> Whole {
        let chat = Arc::new(Chat::with_template("m", byte_level(), ""));
        let tokens = chat.tokenizer.encode(text, false).unwrap();
        let reading = Reading { thinks: true, tools: Some(Format::Marked), ..Reading::default() };
        let logprobs = vec![-1.0; tokens.len()];
        let stop = stop.iter().map(|s| (*s).to_owned()).collect();
        Answer::new(chat, stop, reading).whole(&Sequence {
            tokens,
            logprobs,
            stop_reason: reason,
            topk: None,
            weight_versions: Vec::new(),
        })
    }

    #[test]
    fn an_answer_ends_for_a_reason() {
        let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
        let ending = |text: &str, stop: &[&str], reason| whole(text, stop, reason).ending.unwrap();
        assert_eq!(ending("hello<|end|>", &[], StopReason::Stop), Ending::Turn);
        assert_eq!(ending("hello", &[], StopReason::Length), Ending::Length);
        assert_eq!(ending("hello the", &[" t"], StopReason::Stop), Ending::StopString(" t".into()));
        assert_eq!(ending(call, &[], StopReason::Stop), Ending::Calls);
        assert_eq!(ending(call, &[], StopReason::Length), Ending::Length);
    }

    #[test]
    fn thoughts_text_and_calls_are_joined() {
        let text = "<think>\nhm é\n</think>\n\nhello 世\n<tool_call>{\"name\": \"f\"}</tool_call><|end|>";
        let whole = whole(text, &["STOP"], StopReason::Stop);
        assert_eq!((whole.reasoning.as_str(), whole.content.as_str()), ("hm é", "hello 世"));
        assert_eq!(whole.calls, [Call { name: "f".into(), arguments: "{}".into() }]);
    }

    #[test]
    fn nothing_behind_a_stop_string_and_no_half_character() {
        assert_eq!(whole("hello there", &["the"], StopReason::Stop).content, "hello ");
        let chat = Arc::new(Chat::with_template("m", byte_level(), ""));
        let part = chat.tokenizer.encode("世", false).unwrap()[..2].to_vec();
        let sequence = Sequence {
            tokens: part,
            logprobs: vec![0.0; 2],
            stop_reason: StopReason::Length,
            topk: None,
            weight_versions: Vec::new(),
        };
        assert_eq!(Answer::new(chat, vec![], Reading::default()).whole(&sequence).content, "\u{fffd}");
    }

    #[test]
    fn a_growing_answer_tells_what_is_certain_and_nothing_behind_its_end() {
        let chat = Arc::new(Chat::with_template("m", byte_level(), ""));
        let mut growing = Growing::new(Answer::new(chat.clone(), vec!["STOP".into()], Reading::default()));
        let token = |text: &str, ended| testing::token(chat.tokenizer.encode(text, false).unwrap()[0], ended);
        let content = |text: &str| vec![Part::Content(text.into())];
        assert_eq!(growing.step(&token("hello", None)), Some((content("hello"), None)));
        assert_eq!(growing.step(&token("S", None)), Some((vec![], None)), "it may become a stop string");
        let last = token("hello", Some(StopReason::Length));
        assert_eq!(growing.step(&last), Some((content("Shello"), Some(Ending::Length))));
        assert_eq!(growing.step(&last), None);
    }
}
