"""Chat templates with the structure of published ones, and random conversations for them."""

import random
from typing import Any

SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end|>",
    "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<start_of_turn>", "<end_of_turn>", "<think>",
    "</think>", "[INST]", "[/INST]", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
)  # fmt: skip
ROLES = {"bos": "<s>", "eos": "</s>"}

TEMPLATES = {
    "llama 3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "llama 3.1, tools": (
        "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}"
        "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
        "{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '\n\n' + system"
        " + '<|eot_id|>' }}{%- for message in messages %}"
        "{%- if not (message.role == 'tool' or 'tool_calls' in message) %}"
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim"
        " + '<|eot_id|>' }}{%- elif 'tool_calls' in message %}"
        "{%- if not message.tool_calls | length == 1 %}{{- raise_exception('only single calls') }}{%- endif %}"
        "{%- set call = message.tool_calls[0].function %}"
        "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{{- '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}"
        "{%- else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}"
        "{%- if message.content is mapping or message.content is iterable and message.content is not string %}"
        "{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}"
        "{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
    ),
    "mistral 1": (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('only user and assistant') }}"
        "{% endif %}{% endfor %}"
    ),
    "mistral 3": (
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
        "{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}{{- bos_token }}"
        "{%- for message in rest %}{%- if message['role'] == 'user' %}{%- if loop.last and system is defined %}"
        "{{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}{%- else %}"
        "{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}{%- else %}"
        "{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}{%- endfor %}"
    ),
    "qwen 2.5, tools": (
        "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\n' +"
        " messages[0]['content'] + '<|im_end|>\n' }}"
        "{%- else %}{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}{%- endif %}{%- for message in messages %}"
        "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first)"
        " or (message.role == 'assistant' and not message.tool_calls) %}"
        "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
        "{%- elif message.role == 'assistant' %}{{- '<|im_start|>' + message.role }}{%- if message.content %}"
        "{{- '\n' + message.content }}{%- endif %}{%- for tool_call in message.tool_calls %}"
        "{%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}"
        '{{- \'\n<tool_call>\n{"name": "\' }}{{- tool_call.name }}{{- \'", "arguments": \' }}'
        "{{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
        "{%- elif message.role == 'tool' %}{%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}"
        "{{- '<|im_start|>user' }}{%- endif %}{{- '\n<tool_response>\n' }}{{- message.content }}"
        "{{- '\n</tool_response>' }}{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}"
        "{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    ),
    "qwen 3": (
        "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}"
        "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
        "{%- if ns.multi_step_tool and message.role == 'user' and message.content is string"
        " and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
        "{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}"
        "{%- for message in messages %}{%- if message.content is string %}{%- set content = message.content %}"
        "{%- else %}{%- set content = '' %}{%- endif %}{%- if message.role in ('user', 'system') %}"
        "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}"
        "{%- elif message.role == 'assistant' %}{%- set reasoning_content = '' %}"
        "{%- if message.reasoning_content is string %}{%- set reasoning_content = message.reasoning_content %}"
        "{%- elif '</think>' in content %}"
        "{%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
        "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
        "{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}"
        "{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n'"
        " + content.lstrip('\n') }}{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}"
        "{{- '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
        "{%- endif %}"
    ),
    "phi 3": (
        "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] +"
        " '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
        "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "phi 3.5": (
        "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' +"
        " message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content']"
        " + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] +"
        " '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}"
        "{{ eos_token }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}"
        "{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' +"
        " message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "gemma 3, parts": (
        "{{ bos_token }}{%- for message in messages -%}{%- set role = 'model' if message.role == 'assistant' else"
        " message.role -%}{{ '<start_of_turn>' + role + '\n' }}{%- if message['content'] is string -%}"
        "{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}"
        "{%- for item in message['content'] -%}{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}"
        "{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}"
    ),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] +"
        " eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
        "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
    "vicuna": (
        "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
        "{% else %}{% set rest = messages %}{% set system = 'A chat.' %}{% endif %}{{ system }}"
        "{% for message in rest %}{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'].strip() }}"
        "{% else %}{{ ' ASSISTANT: ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"
    ),
    "smollm2": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' +"
        " message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "deepseek r1": (
        "{% set ns = namespace(system='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}"
        "{% set ns.system = message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}"
        "{%- for message in messages %}{%- if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
        "{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}"
        "{% set content = message['content'] %}{% if '</think>' in content %}"
        "{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|assistant|>' + content + eos_token }}"
        "{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
    "command r": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}"
        "{{ '<|START_OF_TURN_TOKEN|>SYSTEM' + messages[0]['content'] + '<|END_OF_TURN_TOKEN|>' }}{% else %}"
        "{% set rest = messages %}{% endif %}{% for message in rest %}{% set content = message['content'] %}"
        "{{ '<|START_OF_TURN_TOKEN|>' + ('USER' if message['role'] == 'user' else 'CHATBOT') + content.strip() +"
        " '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|>CHATBOT' }}{% endif %}"
    ),
    "olmo": (
        "{{ eos_token }}{% for message in messages %}\n{% if message['role'] == 'system' %}\n{{ '<|system|>\n' +"
        " message['content'] }}\n{% elif message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] }}\n"
        "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
        "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
    "falcon": (
        "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
        "{% if message['role'] == 'system' %}{{ message['content'] }}"
        "{% elif message['role'] == 'user' %}{{ 'User: ' + message['content'].replace('\r\n', '\n').replace('\n\n',"
        " '\n') }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '\nAssistant:' }}{% else %}{{ '<|endoftext|>' }}{% endif %}"
    ),
}
NO_SYSTEM = {"mistral 1", "gemma"}
TOOLS = {"llama 3.1, tools", "qwen 2.5, tools"}
CALL = {"id": "call1", "type": "function", "function": {"name": "area", "arguments": {"x": 1.5, "é": [None, "<b>"]}}}
WORDS = [
    "a",
    "I",
    "the",
    "Yes,",
    "12",
    "3.5",
    "naïve",
    "Привет",
    "日本語",
    "🙂",
    "{x}",
    "don't",
    "=",
    "two\n\nlines",
    "<tool_response>",
]


def conversation(draw: random.Random, name: str, texts: list[str] | None = None) -> list[dict[str, Any]]:
    """Return a random conversation of one to three exchanges for a template; answers may begin with `texts`."""

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))

    messages: list[dict[str, Any]] = []
    if name not in NO_SYSTEM and draw.random() < 0.5:
        messages += [{"role": "system", "content": text()}]
    for _ in range(draw.randint(1, 3)):
        messages += [{"role": "user", "content": text()}]
        if name in TOOLS and draw.random() < 0.4:
            messages += [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "7"}]
        messages += [{"role": "assistant", "content": (draw.choice(texts) if texts else "") + text()}]
    return messages
