{{- /* The release's name, with "kvtide" in it; short enough for the suffixes of all objects. */ -}}
{{- define "kvtide.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvtide.operatorName" -}}
{{- printf "%s-operator" (include "kvtide.fullname" .) -}}
{{- end -}}

{{- /* A second release may have the same name in another namespace: what has no namespace carries it in its name. */ -}}
{{- define "kvtide.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "kvtide.operatorName" .) -}}
{{- end -}}

{{- /* Not "…-operator-admission": a Service's name has at most 63 characters. */ -}}
{{- define "kvtide.admissionService" -}}
{{- printf "%s-admission" (include "kvtide.fullname" .) -}}
{{- end -}}

{{- define "kvtide.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "kvtide.operatorName" .) -}}
{{- end -}}

{{- /* The NetworkPolicy of every worker lets in pods of this name: it is part of the operator's contract, not a value. */ -}}
{{- define "kvtide.selectorLabels" -}}
app.kubernetes.io/name: kvtide-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvtide.labels" -}}
{{ include "kvtide.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: kvtide
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kvtide.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .appVersion) -}}
{{- end -}}
