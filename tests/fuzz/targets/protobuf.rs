//! forward_backward bodies in protobuf: decoded, converted, checked; encoded again, also as JSON, they mean the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tinderbox::api::fuzzing::{json_body, messages_in, number_of, proto_body};
use tinderbox::command::Loss;
use tinderbox_client::proto;
use tinderbox_client::types::lenient::parse_object;
use tinderbox_client::types::training::ForwardBackwardRequest;
use tinderbox_fuzz::{MAX_DATUMS, model, obeys};

fuzz_target!(|body: &[u8]| {
    if let Some((run, number)) = number_of(body) {
        assert!(number > 0 && run.0.len() <= body.len());
    }
    let model = model();
    let checked = proto_body(body, &model, MAX_DATUMS);
    if let Ok(checked) = &checked {
        obeys(checked);
    }
    let Ok(message) = proto::ForwardBackwardRequest::decode(body) else { return };
    let held = |d: &proto::Datum| 1 + d.model_input.len() + d.model_input_spans.len() + d.loss_fn_input_spans.len();
    assert!(messages_in(body) >= message.data.iter().map(held).sum(), "more messages than were counted");
    let again = proto_body(&message.encode_to_vec(), &model, MAX_DATUMS);
    assert_eq!(again.as_ref().ok(), checked.as_ref().ok(), "encoded again it means something else");

    let Ok(request) = ForwardBackwardRequest::try_from(&message) else { return };
    if let Ok(message) = proto::ForwardBackwardRequest::try_from(&request) {
        let back = ForwardBackwardRequest::try_from(&message).expect("what was converted converts back");
        let twice = proto::ForwardBackwardRequest::try_from(&back).expect("and again");
        // As text, since NaN equals nothing.
        assert_eq!(format!("{:?}", ForwardBackwardRequest::try_from(&twice)), format!("{:?}", Ok::<_, ()>(back)));
    }
    if let Ok((data, loss, forward_only)) = checked
        && !matches!(loss, Loss::StableReinforce { .. })
    {
        let json = serde_json::to_vec(&request).expect("a request is JSON");
        let read = parse_object(&json).expect("as it was written");
        let read = json_body(read, &model, MAX_DATUMS).expect("JSON means what protobuf means");
        assert_eq!(read, (data, loss, forward_only));
    }
});
